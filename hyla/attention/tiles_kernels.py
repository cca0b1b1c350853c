"""The Triton kernels of `tiles`: scores, code and value networks of a tile stay on the chip.

Lower-case suffixes name the axes of a tile, padded with zeros to powers of two: `a_hqk` is the code
of BQ queries and BK keys. Products over whole tiles are batched matrix products, over heads,
queries or keys as it suits. N, Q, K, H, D, V: as in `fused`.
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _place(
    start, limit, column,
    H: tl.constexpr, S: tl.constexpr, R: tl.constexpr, HP: tl.constexpr, SC: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """Offsets into [rows, H, S] of R rows and SC columns, as [HP, R, SC] or [R, HP, SC]."""
    if HEADS_FIRST:
        head = tl.arange(0, HP)[:, None, None]
        row = tl.arange(0, R)[None, :, None]
    else:
        head = tl.arange(0, HP)[None, :, None]
        row = tl.arange(0, R)[:, None, None]
    size = column + tl.arange(0, SC)[None, None, :]
    inside = (start + row < limit) & (head < H) & (size < S)
    return tl.cast(start, tl.int64) * (H * S) + ((row * H + head) * S + size), inside


@triton.jit
def _load(
    pointer, start, limit, column,
    H: tl.constexpr, S: tl.constexpr, R: tl.constexpr, HP: tl.constexpr, SC: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    offsets, inside = _place(start, limit, column, H, S, R, HP, SC, HEADS_FIRST)
    return tl.load(pointer + offsets, mask=inside, other=0.0)


@triton.jit
def _store(
    pointer, tile, start, limit, column,
    H: tl.constexpr, S: tl.constexpr, R: tl.constexpr, HP: tl.constexpr, SC: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    offsets, inside = _place(start, limit, column, H, S, R, HP, SC, HEADS_FIRST)
    tl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _place_hq(n, q0, Q, H: tl.constexpr, HP: tl.constexpr, BQ: tl.constexpr):
    """Offsets into [N, H, Q]."""
    head = tl.arange(0, HP)[:, None]
    query = q0 + tl.arange(0, BQ)[None, :]
    return (n * H + head) * Q + query, (head < H) & (query < Q)


@triton.jit
def _key_limit(lengths, n, K):
    limit = K
    if lengths is not None:
        limit = tl.minimum(tl.load(lengths + n), K)
    return limit


@triton.jit
def _phi(x, RELU: tl.constexpr):
    if RELU:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def _phi_gradient(dy, x, RELU: tl.constexpr):
    if RELU:
        dy = tl.where(x > 0.0, dy, 0.0)
    return dy


@triton.jit
def _scores(
    q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H: tl.constexpr, D: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The scores, MASKED where a pair takes no part, and which pairs do.

    q_hqd and k_hkd are the first columns, the others are loaded here from q and k.
    """
    HS: tl.constexpr = q_hqd.shape[0]
    BQ: tl.constexpr = q_hqd.shape[1]
    DC: tl.constexpr = q_hqd.shape[2]
    BK: tl.constexpr = k_hkd.shape[1]
    s_hqk = tl.dot(q_hqd, tl.permute(k_hkd, (0, 2, 1)), input_precision=PRECISION)
    for column in range(DC, D, DC):
        q_more = _load(q, q0, Q, column, H, D, BQ, HS, DC, True)
        k_more = _load(k, k0, limit, column, H, D, BK, HS, DC, True)
        s_hqk = tl.dot(q_more, tl.permute(k_more, (0, 2, 1)), s_hqk, input_precision=PRECISION)
    s_hqk *= scale
    query = (q0 + tl.arange(0, BQ))[None, :, None]
    key = (k0 + tl.arange(0, BK))[None, None, :]
    allowed = (query < Q) & (key < limit)
    if CAUSAL:
        allowed = allowed & (key <= query + (K - Q))
    if bias is not None:
        head = tl.arange(0, HS)[:, None, None]
        allowed = allowed & (head < H)
        offsets = (head.to(tl.int64) * Q + query) * K + key
        bias_hqk = tl.load(bias + offsets, mask=allowed, other=float("-inf"))
        allowed = allowed & (bias_hqk != float("-inf"))
        s_hqk += bias_hqk
    return tl.where(allowed, s_hqk, MASKED), allowed


@triton.jit
def _code(s_hqk, lse_hq, eps, H: tl.constexpr, NORMALISER: tl.constexpr):
    """The code, and the factor by which RMSHead made it."""
    a_hqk = s_hqk
    factor_qk = 1.0
    if NORMALISER == "softmax":
        a_hqk = tl.exp(s_hqk - lse_hq[:, :, None])
    if NORMALISER == "rms_head":
        factor_qk = tl.rsqrt(tl.sum(s_hqk * s_hqk, axis=0) / H + eps)
        a_hqk = s_hqk * factor_qk[None, :, :]
    return a_hqk, factor_qk


@triton.jit
def _score_gradient(
    da_hqk, a_hqk, factor_qk, delta_hq, allowed, eps, H: tl.constexpr, NORMALISER: tl.constexpr
):
    ds_hqk = da_hqk
    if NORMALISER == "softmax":
        ds_hqk = a_hqk * (da_hqk - delta_hq[:, :, None])
    if NORMALISER == "rms_head":
        if H == 1:
            # 1 - a^2 without its cancellation: a single head's code is hardly more than a sign.
            ds_hqk = da_hqk * (factor_qk * factor_qk * factor_qk * eps)[None, :, :]
        else:
            mean_qk = tl.sum(da_hqk * a_hqk, axis=0) / H
            ds_hqk = factor_qk[None, :, :] * (da_hqk - a_hqk * mean_qk[None, :, :])
    return tl.where(allowed, ds_hqk, 0.0)


@triton.jit
def _add_heads(a_hqk, HP: tl.constexpr):
    """Zeros for more heads, where a sum over heads needs them: HP is 1 or 2 times as many."""
    if a_hqk.shape[0] != HP:
        pairs_hqk2 = tl.join(a_hqk, tl.zeros_like(a_hqk))
        a_hqk = tl.reshape(
            tl.permute(pairs_hqk2, (3, 0, 1, 2)), (HP, a_hqk.shape[1], a_hqk.shape[2])
        )
    return a_hqk


@triton.jit
def _drop_heads(da_hqk, HS: tl.constexpr):
    """The reverse of `_add_heads`."""
    if da_hqk.shape[0] != HS:
        halves_2hqk = tl.reshape(da_hqk, (2, HS, da_hqk.shape[1], da_hqk.shape[2]))
        da_hqk = tl.sum(halves_2hqk, axis=0)
    return da_hqk


@triton.jit
def _hidden(a_hqk, v_khv, PRECISION: tl.constexpr):
    a_kqh = tl.permute(_add_heads(a_hqk, v_khv.shape[1]), (2, 1, 0))
    return tl.dot(a_kqh, v_khv, input_precision=PRECISION)


@triton.jit
def _code_of_head(a_hqk, h):
    """The code of one head, for each of the pairs p that a tile `z_kqv` flattens to."""
    head = tl.arange(0, a_hqk.shape[0])[:, None, None]
    a_qk = tl.sum(tl.where(head == h, a_hqk.to(tl.float32), 0.0), axis=0)
    return tl.reshape(tl.permute(a_qk, (1, 0)), (a_hqk.shape[1] * a_hqk.shape[2],))


@triton.jit
def _place_matrix(h, V: tl.constexpr, VP: tl.constexpr):
    out = tl.arange(0, VP)[:, None]
    size = tl.arange(0, VP)[None, :]
    return (h * V + out) * V + size, (out < V) & (size < V)


@triton.jit
def _deep_hidden(
    a_hqk, z_kqv, deep, H: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, PRECISION: tl.constexpr
):
    PAIRS: tl.constexpr = a_hqk.shape[1] * a_hqk.shape[2]
    z_pv = tl.reshape(z_kqv, (PAIRS, VP)).to(tl.float32)
    hidden_pu = tl.zeros((PAIRS, VP), tl.float32)
    for h in range(H):
        offsets, inside = _place_matrix(h, V, VP)
        w_uv = tl.load(deep + offsets, mask=inside, other=0.0)
        az_pv = (_code_of_head(a_hqk, h)[:, None] * z_pv).to(w_uv.dtype)
        hidden_pu = tl.dot(az_pv, tl.permute(w_uv, (1, 0)), hidden_pu, input_precision=PRECISION)
    return tl.reshape(hidden_pu, z_kqv.shape)


@triton.jit
def _deep_gradient(
    dhidden_kqu, a_hqk, z_kqv, deep, ddeep, H: tl.constexpr, V: tl.constexpr, VP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the code and of z; that of the matrices is added to `ddeep`, if given."""
    BQ: tl.constexpr = a_hqk.shape[1]
    BK: tl.constexpr = a_hqk.shape[2]
    head = tl.arange(0, a_hqk.shape[0])[:, None, None]
    z_pv = tl.reshape(z_kqv, (BK * BQ, VP)).to(tl.float32)
    dhidden_pu = tl.reshape(dhidden_kqu, (BK * BQ, VP))
    da_hqk = tl.zeros(a_hqk.shape, tl.float32)
    dz_pv = tl.zeros((BK * BQ, VP), tl.float32)
    for h in range(H):
        offsets, inside = _place_matrix(h, V, VP)
        w_uv = tl.load(deep + offsets, mask=inside, other=0.0)
        a_p = _code_of_head(a_hqk, h)
        daz_pv = tl.dot(dhidden_pu, w_uv, input_precision=PRECISION)
        dz_pv += a_p[:, None] * daz_pv
        da_qk = tl.permute(tl.reshape(tl.sum(daz_pv * z_pv, axis=1), (BK, BQ)), (1, 0))
        da_hqk += tl.where(head == h, da_qk[None, :, :], 0.0)
        if ddeep is not None:
            az_pv = (a_p[:, None] * z_pv).to(w_uv.dtype)
            dw_uv = tl.dot(tl.permute(dhidden_pu, (1, 0)), az_pv, input_precision=PRECISION)
            dw_uv += tl.load(ddeep + offsets, mask=inside, other=0.0)
            tl.store(ddeep + offsets, dw_uv, mask=inside)
    return da_hqk, tl.reshape(dz_pv, z_kqv.shape)


@triton.jit
def _column_gradient(
    a_hqk, v, do, deep, ddeep, H: tl.constexpr, V: tl.constexpr,
    NETWORK: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What columns of the values add to the gradient of the code, and that of their hidden layer.

    Recomputes the value networks. For linear ones v and do are [h, ., v], else [., h, v]; a deep
    one needs all columns.
    """
    if NETWORK == "linear":
        da_hqk = tl.dot(
            do, tl.permute(_phi(v, RELU).to(v.dtype), (0, 2, 1)), input_precision=PRECISION
        )
        dz = do
    else:
        exact_hqk = a_hqk
        a_hqk = exact_hqk.to(v.dtype)
        hidden_kqv = _hidden(a_hqk, v, PRECISION)
        if RELU and v.dtype != tl.float32:
            # Which units are on must not depend on how the code was rounded.
            rest_hqk = exact_hqk - a_hqk.to(tl.float32)
            hidden_kqv += _hidden(rest_hqk.to(v.dtype), v, PRECISION)
        y_kqv = _phi(hidden_kqv, RELU).to(v.dtype)
        # The sum over heads of the code times the gradient of the output: what reaches y.
        a_qkh = tl.permute(_add_heads(a_hqk, do.shape[1]), (1, 2, 0))
        dy_qkv = tl.dot(a_qkh, do, input_precision=PRECISION)
        # Rounded before the layout changes, which goes through shared memory.
        dy_kqv = tl.permute(dy_qkv.to(v.dtype), (1, 0, 2))
        if NETWORK == "deep":
            z_kqv = y_kqv
            deep_kqv = _deep_hidden(a_hqk, z_kqv, deep, H, V, v.shape[2], PRECISION)
            y_kqv = _phi(deep_kqv, RELU).to(v.dtype)
            ddeep_kqv = _phi_gradient(dy_kqv, deep_kqv, RELU).to(v.dtype)
            da_deep_hqk, dy_kqv = _deep_gradient(
                ddeep_kqv, a_hqk, z_kqv, deep, ddeep, H, V, v.shape[2], PRECISION
            )
        dz = _phi_gradient(dy_kqv, hidden_kqv, RELU).to(v.dtype)
        y_qkv = tl.permute(y_kqv, (1, 0, 2))
        da_qkh = tl.dot(y_qkv, tl.permute(do, (0, 2, 1)), input_precision=PRECISION)
        da_kqh = tl.dot(dz, tl.permute(v, (0, 2, 1)), input_precision=PRECISION)
        da_hqk = tl.permute(da_qkh, (2, 0, 1)) + tl.permute(da_kqh, (2, 1, 0))
        da_hqk = _drop_heads(da_hqk, a_hqk.shape[0])
        if NETWORK == "deep":
            da_hqk += da_deep_hqk
    return da_hqk, dz


@triton.jit
def _code_gradient(
    a_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, ddeep, H: tl.constexpr, V: tl.constexpr,
    NETWORK: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of the code and of the hidden layer before phi, in its first columns.

    v_tile and do are the first columns, the others are loaded here from v and grad.
    """
    LINEAR: tl.constexpr = NETWORK == "linear"
    HP: tl.constexpr = v_tile.shape[0 if LINEAR else 1]
    BQ: tl.constexpr = a_hqk.shape[1]
    BK: tl.constexpr = a_hqk.shape[2]
    VC: tl.constexpr = v_tile.shape[2]
    da_hqk, dz = _column_gradient(a_hqk, v_tile, do, deep, ddeep, H, V, NETWORK, RELU, PRECISION)
    for column in range(VC, V, VC):
        v_more = _load(v, k0, limit, column, H, V, BK, HP, VC, LINEAR)
        do_more = _load(grad, q0, Q, column, H, V, BQ, HP, VC, LINEAR)
        more_hqk, _ = _column_gradient(
            a_hqk, v_more, do_more, deep, ddeep, H, V, NETWORK, RELU, PRECISION
        )
        da_hqk += more_hqk
    return da_hqk, dz


@triton.jit
def forward_kernel(
    q, k, v, bias, lengths, deep, out, lse,
    k_stride, v_stride, bias_share, deep_share, split_keys, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The output of a tile of queries, or what some of the keys add to it."""
    LINEAR: tl.constexpr = NETWORK == "linear"
    MASKED: tl.constexpr = float("-inf") if NORMALISER == "softmax" else 0.0
    n = tl.program_id(0).to(tl.int64)
    # The last queries first: under a causal mask they have the most keys.
    q0 = (tl.num_programs(1) - 1 - tl.program_id(1)) * BQ
    if bias is not None:
        bias += n // bias_share * (tl.cast(Q, tl.int64) * K * H)
    if deep is not None:
        deep += n // deep_share * (H * V * V)
    k += n * k_stride
    v += n * v_stride
    limit = _key_limit(lengths, n, K)
    chunks: tl.constexpr = (V + VC - 1) // VC
    column = tl.program_id(2) % chunks * VC
    split = tl.program_id(2) // chunks
    first = split * split_keys
    last = tl.minimum(first + split_keys, limit)
    if CAUSAL:
        last = tl.minimum(last, q0 + BQ + K - Q)
    q += n * Q * H * D
    q_hqd = _load(q, q0, Q, 0, H, D, BQ, HS, DC, True)

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    if NORMALISER == "softmax":
        top_hq = tl.full((HS, BQ), float("-inf"), tl.float32)
        sum_hq = tl.zeros((HS, BQ), tl.float32)
        for k0 in range(first, last, BK):
            k_hkd = _load(k, k0, limit, 0, H, D, BK, HS, DC, True)
            s_hqk, _ = _scores(
                q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED,
                PRECISION,
            )  # fmt: skip
            new_hq = tl.maximum(top_hq, tl.max(s_hqk, axis=2))
            # No key so far: any finite number keeps -inf - (-inf) from being NaN.
            base_hq = tl.where(new_hq == float("-inf"), 0.0, new_hq)
            sum_hq = sum_hq * tl.exp(top_hq - base_hq)
            sum_hq += tl.sum(tl.exp(s_hqk - base_hq[:, :, None]), axis=2)
            top_hq = new_hq
        # A query without keys: weights exp(-inf - inf) = 0.
        empty_hq = sum_hq == 0.0
        lse_hq = top_hq + tl.log(tl.where(empty_hq, 1.0, sum_hq))
        lse_hq = tl.where(empty_hq, float("inf"), lse_hq)
        offsets, inside = _place_hq(n, q0, Q, H, HS, BQ)
        tl.store(lse + offsets, lse_hq, mask=inside)

    # [h, q, v] for a linear value network, whose product is batched over heads, else [q, v, h]:
    # the last axis of a product needs no more than 8 heads, the one before it 16.
    out_tile = tl.zeros((HS, BQ, VC) if LINEAR else (BQ, VC, HS), tl.float32)
    for k0 in range(first, last, BK):
        k_hkd = _load(k, k0, limit, 0, H, D, BK, HS, DC, True)
        v_tile = _load(v, k0, limit, column, H, V, BK, HP, VC, LINEAR)
        s_hqk, _ = _scores(
            q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        a_hqk, _ = _code(s_hqk, lse_hq, eps, H, NORMALISER)
        a_hqk = a_hqk.to(v_tile.dtype)
        if LINEAR:
            out_tile = tl.dot(
                a_hqk, _phi(v_tile, RELU).to(v_tile.dtype), out_tile, input_precision=PRECISION
            )
        else:
            y_kqv = _phi(_hidden(a_hqk, v_tile, PRECISION), RELU).to(v_tile.dtype)
            if NETWORK == "deep":
                deep_kqv = _deep_hidden(a_hqk, y_kqv, deep, H, V, VC, PRECISION)
                y_kqv = _phi(deep_kqv, RELU).to(v_tile.dtype)
            y_qvk = tl.permute(y_kqv, (1, 2, 0))
            a_qkh = tl.permute(a_hqk, (1, 2, 0))
            out_tile = tl.dot(y_qvk, a_qkh, out_tile, input_precision=PRECISION)
    out += (split * tl.num_programs(0) + n) * Q * H * V
    if not LINEAR:
        out_tile = tl.permute(out_tile, (0, 2, 1))
    _store(out, out_tile, q0, Q, column, H, V, BQ, HS, VC, LINEAR)


@triton.jit
def query_kernel(
    grad, q, k, v, bias, lengths, deep, out, lse, delta, dq,
    k_stride, v_stride, bias_share, deep_share, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries; for softmax also delta = sum over keys of a * da."""
    LINEAR: tl.constexpr = NETWORK == "linear"
    SOFTMAX: tl.constexpr = NORMALISER == "softmax"
    MASKED: tl.constexpr = float("-inf") if NORMALISER == "softmax" else 0.0
    n = tl.program_id(0).to(tl.int64)
    q0 = (tl.num_programs(1) - 1 - tl.program_id(1)) * BQ
    if bias is not None:
        bias += n // bias_share * (tl.cast(Q, tl.int64) * K * H)
    if deep is not None:
        deep += n // deep_share * (H * V * V)
    k += n * k_stride
    v += n * v_stride
    limit = _key_limit(lengths, n, K)
    last = limit
    if CAUSAL:
        last = tl.minimum(last, q0 + BQ + K - Q)
    q += n * Q * H * D
    q_hqd = _load(q, q0, Q, 0, H, D, BQ, HS, DC, True)
    grad += n * Q * H * V
    do = _load(grad, q0, Q, 0, H, V, BQ, HP, VC, LINEAR)
    column = tl.program_id(2) * DC

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    delta_hq = tl.zeros((HS, BQ), tl.float32)
    if SOFTMAX:
        offsets, inside = _place_hq(n, q0, Q, H, HS, BQ)
        lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
        if LINEAR:
            out += n * Q * H * V
            for c in range(0, V, VC):
                out_hqv = _load(out, q0, Q, c, H, V, BQ, HP, VC, True).to(tl.float32)
                delta_hq += tl.sum(_load(grad, q0, Q, c, H, V, BQ, HP, VC, True) * out_hqv, axis=2)
        else:
            for k0 in range(0, last, BK):
                k_hkd = _load(k, k0, limit, 0, H, D, BK, HS, DC, True)
                v_tile = _load(v, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
                s_hqk, _ = _scores(
                    q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED,
                    PRECISION,
                )  # fmt: skip
                a_hqk, _ = _code(s_hqk, lse_hq, eps, H, NORMALISER)
                da_hqk, _ = _code_gradient(
                    a_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, None, H,
                    V, NETWORK, RELU, PRECISION,
                )  # fmt: skip
                delta_hq += tl.sum(a_hqk * da_hqk, axis=2)
        tl.store(delta + offsets, delta_hq, mask=inside)

    dq_hqd = tl.zeros((HS, BQ, DC), tl.float32)
    for k0 in range(0, last, BK):
        k_hkd = _load(k, k0, limit, 0, H, D, BK, HS, DC, True)
        v_tile = _load(v, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
        s_hqk, allowed = _scores(
            q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        a_hqk, factor_qk = _code(s_hqk, lse_hq, eps, H, NORMALISER)
        da_hqk, _ = _code_gradient(
            a_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, None, H, V,
            NETWORK, RELU, PRECISION,
        )  # fmt: skip
        ds_hqk = _score_gradient(da_hqk, a_hqk, factor_qk, delta_hq, allowed, eps, H, NORMALISER)
        if DC < D:
            k_hkd = _load(k, k0, limit, column, H, D, BK, HS, DC, True)
        dq_hqd = tl.dot(ds_hqk.to(k_hkd.dtype), k_hkd, dq_hqd, input_precision=PRECISION)
    _store(dq + n * Q * H * D, dq_hqd * scale, q0, Q, column, H, D, BQ, HS, DC, True)


@triton.jit
def key_kernel(
    grad, q, k, v, bias, lengths, deep, lse, delta, dk, dv,
    k_stride, v_stride, bias_share, deep_share, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values."""
    LINEAR: tl.constexpr = NETWORK == "linear"
    MASKED: tl.constexpr = float("-inf") if NORMALISER == "softmax" else 0.0
    n = tl.program_id(0).to(tl.int64)
    k0 = tl.program_id(1) * BK
    if bias is not None:
        bias += n // bias_share * (tl.cast(Q, tl.int64) * K * H)
    if deep is not None:
        deep += n // deep_share * (H * V * V)
    q += n * Q * H * D
    grad += n * Q * H * V
    limit = _key_limit(lengths, n, K)
    k += n * k_stride
    v += n * v_stride
    k_hkd = _load(k, k0, limit, 0, H, D, BK, HS, DC, True)
    v_tile = _load(v, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
    v_own = v_tile
    d_column = tl.program_id(2) * DC
    v_column = tl.program_id(2) * VC
    if VC < V:
        v_own = _load(v, k0, limit, v_column, H, V, BK, HP, VC, LINEAR)
    first = 0
    if CAUSAL:
        first = tl.maximum(k0 - (K - Q), 0) // BQ * BQ
    # A tile of keys that take no part has no queries.
    last = tl.where(k0 < limit, Q, 0)

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    delta_hq = tl.zeros((HS, BQ), tl.float32)
    dk_hkd = tl.zeros((HS, BK, DC), tl.float32)
    dv_tile = tl.zeros((HS, BK, VC) if LINEAR else (BK, VC, HS), tl.float32)
    for q0 in range(first, last, BQ):
        q_hqd = _load(q, q0, Q, 0, H, D, BQ, HS, DC, True)
        do = _load(grad, q0, Q, 0, H, V, BQ, HP, VC, LINEAR)
        if NORMALISER == "softmax":
            offsets, inside = _place_hq(n, q0, Q, H, HS, BQ)
            lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
            delta_hq = tl.load(delta + offsets, mask=inside, other=0.0)
        s_hqk, allowed = _scores(
            q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        a_hqk, factor_qk = _code(s_hqk, lse_hq, eps, H, NORMALISER)
        rounded_hqk = a_hqk.to(v_tile.dtype)
        # For a linear value network dz is the gradient of the output, [h, q, v].
        da_hqk, dz = _code_gradient(
            a_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, None, H, V, NETWORK, RELU,
            PRECISION,
        )  # fmt: skip
        ds_hqk = _score_gradient(da_hqk, a_hqk, factor_qk, delta_hq, allowed, eps, H, NORMALISER)
        if DC < D:
            q_hqd = _load(q, q0, Q, d_column, H, D, BQ, HS, DC, True)
        if VC < V:
            do = _load(grad, q0, Q, v_column, H, V, BQ, HP, VC, LINEAR)
            _, dz = _column_gradient(a_hqk, v_own, do, deep, None, H, V, NETWORK, RELU, PRECISION)
        ds_hkq = tl.permute(ds_hqk.to(q_hqd.dtype), (0, 2, 1))
        dk_hkd = tl.dot(ds_hkq, q_hqd, dk_hkd, input_precision=PRECISION)
        if LINEAR:
            a_hkq = tl.permute(rounded_hqk, (0, 2, 1))
            dv_tile = tl.dot(a_hkq, dz, dv_tile, input_precision=PRECISION)
        else:
            dz_kvq = tl.permute(dz, (0, 2, 1))
            a_kqh = tl.permute(rounded_hqk, (2, 1, 0))
            dv_tile = tl.dot(dz_kvq, a_kqh, dv_tile, input_precision=PRECISION)
    dv_tile = _phi_gradient(dv_tile, v_own, RELU) if LINEAR else tl.permute(dv_tile, (0, 2, 1))
    _store(dk + n * K * H * D, dk_hkd * scale, k0, K, d_column, H, D, BK, HS, DC, True)
    _store(dv + n * K * H * V, dv_tile, k0, K, v_column, H, V, BK, HS, VC, LINEAR)


@triton.jit
def bias_kernel(
    grad, q, k, v, bias, lengths, deep, lse, delta, dbias,
    k_stride, v_stride, bias_share, deep_share, groups, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of one set of biases, over one group of the set's sequences.

    dbias: [M, groups, H, Q, K].
    """
    LINEAR: tl.constexpr = NETWORK == "linear"
    MASKED: tl.constexpr = float("-inf") if NORMALISER == "softmax" else 0.0
    m = (tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    q0 = tl.program_id(1) * BQ
    k0 = tl.program_id(2) * BK
    set_size = tl.cast(Q, tl.int64) * K * H
    bias += m * set_size
    last = bias_share
    if CAUSAL:
        last = tl.where(k0 < q0 + BQ + K - Q, last, 0)

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    delta_hq = tl.zeros((HS, BQ), tl.float32)
    ds_hqk = tl.zeros((HS, BQ, BK), tl.float32)
    for i in range(group, last, groups):
        n = m * bias_share + i
        limit = _key_limit(lengths, n, K)
        q_n = q + n * Q * H * D
        grad_n = grad + n * Q * H * V
        k_n = k + n * k_stride
        v_n = v + n * v_stride
        q_hqd = _load(q_n, q0, Q, 0, H, D, BQ, HS, DC, True)
        do = _load(grad_n, q0, Q, 0, H, V, BQ, HP, VC, LINEAR)
        k_hkd = _load(k_n, k0, limit, 0, H, D, BK, HS, DC, True)
        v_tile = _load(v_n, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
        if NORMALISER == "softmax":
            offsets, inside = _place_hq(n, q0, Q, H, HS, BQ)
            lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
            delta_hq = tl.load(delta + offsets, mask=inside, other=0.0)
        s_hqk, allowed = _scores(
            q_hqd, k_hkd, q_n, k_n, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED,
            PRECISION,
        )  # fmt: skip
        a_hqk, factor_qk = _code(s_hqk, lse_hq, eps, H, NORMALISER)
        matrices = deep
        if matrices is not None:
            matrices += n // deep_share * (H * V * V)
        da_hqk, _ = _code_gradient(
            a_hqk, v_tile, do, v_n, grad_n, q0, k0, Q, limit, matrices, None, H,
            V, NETWORK, RELU, PRECISION,
        )  # fmt: skip
        ds_hqk += _score_gradient(da_hqk, a_hqk, factor_qk, delta_hq, allowed, eps, H, NORMALISER)
    head = tl.arange(0, HS)[:, None, None]
    query = (q0 + tl.arange(0, BQ))[None, :, None]
    key = (k0 + tl.arange(0, BK))[None, None, :]
    offsets = (head.to(tl.int64) * Q + query) * K + key
    inside = (head < H) & (query < Q) & (key < K)
    tl.store(dbias + tl.program_id(0) * set_size + offsets, ds_hqk, mask=inside)


@triton.jit
def deep_kernel(
    grad, q, k, v, bias, lengths, deep, lse, ddeep,
    k_stride, v_stride, bias_share, deep_share, groups, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of one set of deep matrices, over one group of the set's query tiles.

    ddeep: zeros [M, groups, H, V, V]; every program adds to its own matrices.
    """
    MASKED: tl.constexpr = float("-inf") if NORMALISER == "softmax" else 0.0
    m = (tl.program_id(0) // groups).to(tl.int64)
    query_tiles = tl.cdiv(Q, BQ)
    deep += m * (H * V * V)
    ddeep += tl.program_id(0).to(tl.int64) * (H * V * V)
    lse_hq = tl.zeros((HS, BQ), tl.float32)
    for i in range(tl.program_id(0) % groups, deep_share * query_tiles, groups):
        n = m * deep_share + i // query_tiles
        q0 = i % query_tiles * BQ
        member_bias = bias
        if member_bias is not None:
            member_bias += n // bias_share * (tl.cast(Q, tl.int64) * K * H)
        limit = _key_limit(lengths, n, K)
        last = limit
        if CAUSAL:
            last = tl.minimum(last, q0 + BQ + K - Q)
        q_n = q + n * Q * H * D
        grad_n = grad + n * Q * H * V
        k_n = k + n * k_stride
        v_n = v + n * v_stride
        q_hqd = _load(q_n, q0, Q, 0, H, D, BQ, HS, DC, True)
        do = _load(grad_n, q0, Q, 0, H, V, BQ, HP, VC, False)
        if NORMALISER == "softmax":
            offsets, inside = _place_hq(n, q0, Q, H, HS, BQ)
            lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
        for k0 in range(0, last, BK):
            k_hkd = _load(k_n, k0, limit, 0, H, D, BK, HS, DC, True)
            v_tile = _load(v_n, k0, limit, 0, H, V, BK, HP, VC, False)
            s_hqk, _ = _scores(
                q_hqd, k_hkd, q_n, k_n, member_bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL,
                MASKED, PRECISION,
            )  # fmt: skip
            a_hqk, _ = _code(s_hqk, lse_hq, eps, H, NORMALISER)
            _code_gradient(
                a_hqk, v_tile, do, v_n, grad_n, q0, k0, Q, limit, deep, ddeep, H, V, NETWORK,
                RELU, PRECISION,
            )  # fmt: skip
            # What one thread stored, another may load for the next keys.
            tl.debug_barrier()
