"""Device functions of the Triton kernels in `tiles_kernels`.

Lower-case suffixes name the axes of a tile, padded with zeros to powers of two: `a_hqk` is the code
of BQ queries and BK keys. Matrix products over tiles are batched over heads, queries or keys. N, Q,
K, H, D, V: as in `fused`.
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def place_rows(
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
def load_rows(
    pointer, start, limit, column,
    H: tl.constexpr, S: tl.constexpr, R: tl.constexpr, HP: tl.constexpr, SC: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """Load a tile of rows, zero outside the tensor."""
    offsets, inside = place_rows(start, limit, column, H, S, R, HP, SC, HEADS_FIRST)
    return tl.load(pointer + offsets, mask=inside, other=0.0)


@triton.jit
def store_rows(
    pointer, tile, start, limit, column,
    H: tl.constexpr, S: tl.constexpr, R: tl.constexpr, HP: tl.constexpr, SC: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """Store the part of a tile of rows that lies inside the tensor."""
    offsets, inside = place_rows(start, limit, column, H, S, R, HP, SC, HEADS_FIRST)
    tl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def place_hq(n, q0, Q, H: tl.constexpr, HP: tl.constexpr, BQ: tl.constexpr):
    """Offsets into [N, H, Q]."""
    head = tl.arange(0, HP)[:, None]
    query = q0 + tl.arange(0, BQ)[None, :]
    return (n * H + head) * Q + query, (head < H) & (query < Q)


@triton.jit
def key_limit(lengths, n, K):
    """The number of keys of sequence n."""
    limit = K
    if lengths is not None:
        limit = tl.minimum(tl.load(lengths + n), K)
    return limit


@triton.jit
def phi(x, RELU: tl.constexpr):
    """The nonlinearity, if any."""
    if RELU:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def phi_gradient(dy, x, RELU: tl.constexpr):
    """The gradient of phi's input x, from that of its output."""
    if RELU:
        dy = tl.where(x > 0.0, dy, 0.0)
    return dy


@triton.jit
def make_scores(
    q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H: tl.constexpr, D: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The scores, with MASKED for excluded pairs, and the mask of included pairs.

    q_hqd and k_hkd hold the first columns; the others are loaded here from q and k.
    """
    HS: tl.constexpr = q_hqd.shape[0]
    BQ: tl.constexpr = q_hqd.shape[1]
    DC: tl.constexpr = q_hqd.shape[2]
    BK: tl.constexpr = k_hkd.shape[1]
    s_hqk = tl.dot(q_hqd, tl.permute(k_hkd, (0, 2, 1)), input_precision=PRECISION)
    for column in range(DC, D, DC):
        q_more = load_rows(q, q0, Q, column, H, D, BQ, HS, DC, True)
        k_more = load_rows(k, k0, limit, column, H, D, BK, HS, DC, True)
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
def make_code(s_hqk, lse_hq, eps, H: tl.constexpr, NORMALISER: tl.constexpr):
    """The code, and the factor with which RMSHead scaled it."""
    a_hqk = s_hqk
    factor_qk = 1.0
    if NORMALISER == "softmax":
        a_hqk = tl.exp(s_hqk - lse_hq[:, :, None])
    if NORMALISER == "rms_head":
        factor_qk = tl.rsqrt(tl.sum(s_hqk * s_hqk, axis=0) / H + eps)
        a_hqk = s_hqk * factor_qk[None, :, :]
    return a_hqk, factor_qk


@triton.jit
def apply_factors(a_hqk, factors, q0, k0, Q, K):
    """The code times the factor of each pair, and these factors."""
    f_qk = 1.0
    if factors is not None:
        query = (q0 + tl.arange(0, a_hqk.shape[1]))[:, None]
        key = (k0 + tl.arange(0, a_hqk.shape[2]))[None, :]
        inside = (query < Q) & (key < K)
        f_qk = tl.load(factors + query.to(tl.int64) * K + key, mask=inside, other=0.0)
        a_hqk *= f_qk[None, :, :]
    return a_hqk, f_qk


@triton.jit
def score_gradient(
    da_hqk, a_hqk, factors, f_qk, factor_qk, delta_hq, allowed, eps, H: tl.constexpr,
    NORMALISER: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores, from that of the code after multiplication by f."""
    if factors is not None:
        da_hqk *= f_qk[None, :, :]
    ds_hqk = da_hqk
    if NORMALISER == "softmax":
        ds_hqk = a_hqk * (da_hqk - delta_hq[:, :, None])
    if NORMALISER == "rms_head":
        if H == 1:
            # 1 - a^2 without cancellation: with a single head, a is close to +-1.
            ds_hqk = da_hqk * (factor_qk * factor_qk * factor_qk * eps)[None, :, :]
        else:
            mean_qk = tl.sum(da_hqk * a_hqk, axis=0) / H
            ds_hqk = factor_qk[None, :, :] * (da_hqk - a_hqk * mean_qk[None, :, :])
    return tl.where(allowed, ds_hqk, 0.0)


@triton.jit
def add_heads(a_hqk, HP: tl.constexpr):
    """Pad heads with zeros to HP, which is their number or twice as many."""
    if a_hqk.shape[0] != HP:
        pairs_hqk2 = tl.join(a_hqk, tl.zeros_like(a_hqk))
        a_hqk = tl.reshape(
            tl.permute(pairs_hqk2, (3, 0, 1, 2)), (HP, a_hqk.shape[1], a_hqk.shape[2])
        )
    return a_hqk


@triton.jit
def drop_heads(da_hqk, HS: tl.constexpr):
    """The reverse of `add_heads`."""
    if da_hqk.shape[0] != HS:
        halves_2hqk = tl.reshape(da_hqk, (2, HS, da_hqk.shape[1], da_hqk.shape[2]))
        da_hqk = tl.sum(halves_2hqk, axis=0)
    return da_hqk


@triton.jit
def mix_heads(a_hqk, v_khv, PRECISION: tl.constexpr):
    """z, the hidden layer of HYLA before its nonlinearity."""
    a_kqh = tl.permute(add_heads(a_hqk, v_khv.shape[1]), (2, 1, 0))
    return tl.dot(a_kqh, v_khv, input_precision=PRECISION)


@triton.jit
def code_of_head(a_hqk, h):
    """The code of one head for each pair p, in the order of a flattened tile `z_kqv`."""
    head = tl.arange(0, a_hqk.shape[0])[:, None, None]
    a_qk = tl.sum(tl.where(head == h, a_hqk.to(tl.float32), 0.0), axis=0)
    return tl.reshape(tl.permute(a_qk, (1, 0)), (a_hqk.shape[1] * a_hqk.shape[2],))


@triton.jit
def place_matrix(h, V: tl.constexpr, VP: tl.constexpr):
    """Offsets into the deep value matrix of a head."""
    out = tl.arange(0, VP)[:, None]
    size = tl.arange(0, VP)[None, :]
    return (h * V + out) * V + size, (out < V) & (size < V)


@triton.jit
def mix_deep(
    a_hqk, z_kqv, deep, H: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, PRECISION: tl.constexpr
):
    """The second hidden layer, before its nonlinearity."""
    PAIRS: tl.constexpr = a_hqk.shape[1] * a_hqk.shape[2]
    z_pv = tl.reshape(z_kqv, (PAIRS, VP)).to(tl.float32)
    hidden_pu = tl.zeros((PAIRS, VP), tl.float32)
    for h in range(H):
        offsets, inside = place_matrix(h, V, VP)
        w_uv = tl.load(deep + offsets, mask=inside, other=0.0)
        az_pv = (code_of_head(a_hqk, h)[:, None] * z_pv).to(w_uv.dtype)
        hidden_pu = tl.dot(az_pv, tl.permute(w_uv, (1, 0)), hidden_pu, input_precision=PRECISION)
    return tl.reshape(hidden_pu, z_kqv.shape)


@triton.jit
def deep_gradient(
    dhidden_kqu, a_hqk, z_kqv, deep, ddeep, H: tl.constexpr, V: tl.constexpr, VP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the code and of z; adds the matrices' gradient to `ddeep`, if given."""
    BQ: tl.constexpr = a_hqk.shape[1]
    BK: tl.constexpr = a_hqk.shape[2]
    head = tl.arange(0, a_hqk.shape[0])[:, None, None]
    z_pv = tl.reshape(z_kqv, (BK * BQ, VP)).to(tl.float32)
    dhidden_pu = tl.reshape(dhidden_kqu, (BK * BQ, VP))
    da_hqk = tl.zeros(a_hqk.shape, tl.float32)
    dz_pv = tl.zeros((BK * BQ, VP), tl.float32)
    for h in range(H):
        offsets, inside = place_matrix(h, V, VP)
        w_uv = tl.load(deep + offsets, mask=inside, other=0.0)
        a_p = code_of_head(a_hqk, h)
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
def column_gradient(
    a_hqk, v, do, deep, ddeep, H: tl.constexpr, V: tl.constexpr,
    NETWORK: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the code from some columns of the values, and that of their hidden layer.

    Recomputes the value networks. For linear ones, v and do are [h, ., v], else [., h, v]; deep
    ones need all columns.
    """
    if NETWORK == "linear":
        da_hqk = tl.dot(
            do, tl.permute(phi(v, RELU).to(v.dtype), (0, 2, 1)), input_precision=PRECISION
        )
        dz = do
    else:
        exact_hqk = a_hqk
        a_hqk = exact_hqk.to(v.dtype)
        hidden_kqv = mix_heads(a_hqk, v, PRECISION)
        if RELU and v.dtype != tl.float32:
            # Rounding the code must not change which units are active.
            rest_hqk = exact_hqk - a_hqk.to(tl.float32)
            hidden_kqv += mix_heads(rest_hqk.to(v.dtype), v, PRECISION)
        y_kqv = phi(hidden_kqv, RELU).to(v.dtype)
        # dy: the sum over heads of the code times the gradient of the output.
        a_qkh = tl.permute(add_heads(a_hqk, do.shape[1]), (1, 2, 0))
        dy_qkv = tl.dot(a_qkh, do, input_precision=PRECISION)
        # Rounded first: the layout change goes through shared memory.
        dy_kqv = tl.permute(dy_qkv.to(v.dtype), (1, 0, 2))
        if NETWORK == "deep":
            z_kqv = y_kqv
            deep_kqv = mix_deep(a_hqk, z_kqv, deep, H, V, v.shape[2], PRECISION)
            y_kqv = phi(deep_kqv, RELU).to(v.dtype)
            ddeep_kqv = phi_gradient(dy_kqv, deep_kqv, RELU).to(v.dtype)
            da_deep_hqk, dy_kqv = deep_gradient(
                ddeep_kqv, a_hqk, z_kqv, deep, ddeep, H, V, v.shape[2], PRECISION
            )
        dz = phi_gradient(dy_kqv, hidden_kqv, RELU).to(v.dtype)
        y_qkv = tl.permute(y_kqv, (1, 0, 2))
        da_qkh = tl.dot(y_qkv, tl.permute(do, (0, 2, 1)), input_precision=PRECISION)
        da_kqh = tl.dot(dz, tl.permute(v, (0, 2, 1)), input_precision=PRECISION)
        da_hqk = tl.permute(da_qkh, (2, 0, 1)) + tl.permute(da_kqh, (2, 1, 0))
        da_hqk = drop_heads(da_hqk, a_hqk.shape[0])
        if NETWORK == "deep":
            da_hqk += da_deep_hqk
    return da_hqk, dz


@triton.jit
def code_gradient(
    a_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, ddeep, H: tl.constexpr, V: tl.constexpr,
    NETWORK: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the code, and that of the first columns of the hidden layer before phi.

    v_tile and do hold the first columns; the others are loaded here from v and grad.
    """
    LINEAR: tl.constexpr = NETWORK == "linear"
    HP: tl.constexpr = v_tile.shape[0 if LINEAR else 1]
    BQ: tl.constexpr = a_hqk.shape[1]
    BK: tl.constexpr = a_hqk.shape[2]
    VC: tl.constexpr = v_tile.shape[2]
    da_hqk, dz = column_gradient(a_hqk, v_tile, do, deep, ddeep, H, V, NETWORK, RELU, PRECISION)
    for column in range(VC, V, VC):
        v_more = load_rows(v, k0, limit, column, H, V, BK, HP, VC, LINEAR)
        do_more = load_rows(grad, q0, Q, column, H, V, BQ, HP, VC, LINEAR)
        more_hqk, _ = column_gradient(
            a_hqk, v_more, do_more, deep, ddeep, H, V, NETWORK, RELU, PRECISION
        )
        da_hqk += more_hqk
    return da_hqk, dz
