"""The Triton kernels of `tiles`: scores, codes and value networks of a tile stay on the chip.

Names and axes: as in `tiles_parts`.
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from hyla.attention.kernels.tiles_parts import (
    apply_factors,
    code_gradient,
    column_gradient,
    key_limit,
    load_rows,
    make_code,
    make_scores,
    mix_deep,
    mix_heads,
    phi,
    phi_gradient,
    place_hq,
    score_gradient,
    store_rows,
)


@triton.jit
def forward_kernel(
    q, k, v, bias, lengths, deep, factors, out, lse,
    k_stride, v_stride, bias_share, deep_share, factor_share, split_keys, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The output of a tile of queries, or the contribution of a split of the keys."""
    LINEAR: tl.constexpr = NETWORK == "linear"
    MASKED: tl.constexpr = float("-inf") if NORMALISER == "softmax" else 0.0
    n = tl.program_id(0).to(tl.int64)
    # Start with the last queries, which have the most keys under a causal mask.
    q0 = (tl.num_programs(1) - 1 - tl.program_id(1)) * BQ
    if bias is not None:
        bias += n // bias_share * (tl.cast(Q, tl.int64) * K * H)
    if deep is not None:
        deep += n // deep_share * (H * V * V)
    if factors is not None:
        factors += n // factor_share * (tl.cast(Q, tl.int64) * K)
    k += n * k_stride
    v += n * v_stride
    limit = key_limit(lengths, n, K)
    chunks: tl.constexpr = (V + VC - 1) // VC
    column = tl.program_id(2) % chunks * VC
    split = tl.program_id(2) // chunks
    first = split * split_keys
    last = tl.minimum(first + split_keys, limit)
    if CAUSAL:
        last = tl.minimum(last, q0 + BQ + K - Q)
    q += n * Q * H * D
    q_hqd = load_rows(q, q0, Q, 0, H, D, BQ, HS, DC, True)

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    if NORMALISER == "softmax":
        top_hq = tl.full((HS, BQ), float("-inf"), tl.float32)
        sum_hq = tl.zeros((HS, BQ), tl.float32)
        for k0 in range(first, last, BK):
            k_hkd = load_rows(k, k0, limit, 0, H, D, BK, HS, DC, True)
            s_hqk, _ = make_scores(
                q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED,
                PRECISION,
            )  # fmt: skip
            new_hq = tl.maximum(top_hq, tl.max(s_hqk, axis=2))
            # Before the first key, any finite base avoids -inf - (-inf) = NaN.
            base_hq = tl.where(new_hq == float("-inf"), 0.0, new_hq)
            sum_hq = sum_hq * tl.exp(top_hq - base_hq)
            sum_hq += tl.sum(tl.exp(s_hqk - base_hq[:, :, None]), axis=2)
            top_hq = new_hq
        # A query without keys: weights exp(-inf - inf) = 0.
        empty_hq = sum_hq == 0.0
        lse_hq = top_hq + tl.log(tl.where(empty_hq, 1.0, sum_hq))
        lse_hq = tl.where(empty_hq, float("inf"), lse_hq)
        offsets, inside = place_hq(n, q0, Q, H, HS, BQ)
        tl.store(lse + offsets, lse_hq, mask=inside)

    # [h, q, v] for a linear value network, whose product is batched over heads, else [q, v, h],
    # since tl.dot pads heads to 8 on the last axis but to 16 on the one before.
    out_tile = tl.zeros((HS, BQ, VC) if LINEAR else (BQ, VC, HS), tl.float32)
    for k0 in range(first, last, BK):
        k_hkd = load_rows(k, k0, limit, 0, H, D, BK, HS, DC, True)
        v_tile = load_rows(v, k0, limit, column, H, V, BK, HP, VC, LINEAR)
        s_hqk, _ = make_scores(
            q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        a_hqk, _ = make_code(s_hqk, lse_hq, eps, H, NORMALISER)
        a_hqk, _ = apply_factors(a_hqk, factors, q0, k0, Q, K)
        a_hqk = a_hqk.to(v_tile.dtype)
        if LINEAR:
            out_tile = tl.dot(
                a_hqk, phi(v_tile, RELU).to(v_tile.dtype), out_tile, input_precision=PRECISION
            )
        else:
            y_kqv = phi(mix_heads(a_hqk, v_tile, PRECISION), RELU).to(v_tile.dtype)
            if NETWORK == "deep":
                deep_kqv = mix_deep(a_hqk, y_kqv, deep, H, V, VC, PRECISION)
                y_kqv = phi(deep_kqv, RELU).to(v_tile.dtype)
            y_qvk = tl.permute(y_kqv, (1, 2, 0))
            a_qkh = tl.permute(a_hqk, (1, 2, 0))
            out_tile = tl.dot(y_qvk, a_qkh, out_tile, input_precision=PRECISION)
    out += (split * tl.num_programs(0) + n) * Q * H * V
    if not LINEAR:
        out_tile = tl.permute(out_tile, (0, 2, 1))
    store_rows(out, out_tile, q0, Q, column, H, V, BQ, HS, VC, LINEAR)


@triton.jit
def query_kernel(
    grad, q, k, v, bias, lengths, deep, factors, out, lse, delta, dq,
    k_stride, v_stride, bias_share, deep_share, factor_share, Q, K, scale, eps,
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
    if factors is not None:
        factors += n // factor_share * (tl.cast(Q, tl.int64) * K)
    k += n * k_stride
    v += n * v_stride
    limit = key_limit(lengths, n, K)
    last = limit
    if CAUSAL:
        last = tl.minimum(last, q0 + BQ + K - Q)
    q += n * Q * H * D
    q_hqd = load_rows(q, q0, Q, 0, H, D, BQ, HS, DC, True)
    grad += n * Q * H * V
    do = load_rows(grad, q0, Q, 0, H, V, BQ, HP, VC, LINEAR)
    column = tl.program_id(2) * DC

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    delta_hq = tl.zeros((HS, BQ), tl.float32)
    if SOFTMAX:
        offsets, inside = place_hq(n, q0, Q, H, HS, BQ)
        lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
        if LINEAR:
            out += n * Q * H * V
            for c in range(0, V, VC):
                out_hqv = load_rows(out, q0, Q, c, H, V, BQ, HP, VC, True).to(tl.float32)
                delta_hq += tl.sum(
                    load_rows(grad, q0, Q, c, H, V, BQ, HP, VC, True) * out_hqv, axis=2
                )
        else:
            for k0 in range(0, last, BK):
                k_hkd = load_rows(k, k0, limit, 0, H, D, BK, HS, DC, True)
                v_tile = load_rows(v, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
                s_hqk, _ = make_scores(
                    q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED,
                    PRECISION,
                )  # fmt: skip
                a_hqk, _ = make_code(s_hqk, lse_hq, eps, H, NORMALISER)
                a_hqk, _ = apply_factors(a_hqk, factors, q0, k0, Q, K)
                da_hqk, _ = code_gradient(
                    a_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, None, H,
                    V, NETWORK, RELU, PRECISION,
                )  # fmt: skip
                delta_hq += tl.sum(a_hqk * da_hqk, axis=2)
        tl.store(delta + offsets, delta_hq, mask=inside)

    dq_hqd = tl.zeros((HS, BQ, DC), tl.float32)
    for k0 in range(0, last, BK):
        k_hkd = load_rows(k, k0, limit, 0, H, D, BK, HS, DC, True)
        v_tile = load_rows(v, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
        s_hqk, allowed = make_scores(
            q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        a_hqk, factor_qk = make_code(s_hqk, lse_hq, eps, H, NORMALISER)
        fa_hqk, f_qk = apply_factors(a_hqk, factors, q0, k0, Q, K)
        da_hqk, _ = code_gradient(
            fa_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, None, H, V,
            NETWORK, RELU, PRECISION,
        )  # fmt: skip
        ds_hqk = score_gradient(
            da_hqk, a_hqk, factors, f_qk, factor_qk, delta_hq, allowed, eps, H, NORMALISER
        )
        if DC < D:
            k_hkd = load_rows(k, k0, limit, column, H, D, BK, HS, DC, True)
        dq_hqd = tl.dot(ds_hqk.to(k_hkd.dtype), k_hkd, dq_hqd, input_precision=PRECISION)
    store_rows(dq + n * Q * H * D, dq_hqd * scale, q0, Q, column, H, D, BQ, HS, DC, True)


@triton.jit
def key_kernel(
    grad, q, k, v, bias, lengths, deep, factors, lse, delta, dk, dv,
    k_stride, v_stride, bias_share, deep_share, factor_share, Q, K, scale, eps,
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
    if factors is not None:
        factors += n // factor_share * (tl.cast(Q, tl.int64) * K)
    q += n * Q * H * D
    grad += n * Q * H * V
    limit = key_limit(lengths, n, K)
    k += n * k_stride
    v += n * v_stride
    k_hkd = load_rows(k, k0, limit, 0, H, D, BK, HS, DC, True)
    v_tile = load_rows(v, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
    v_own = v_tile
    d_column = tl.program_id(2) * DC
    v_column = tl.program_id(2) * VC
    if VC < V:
        v_own = load_rows(v, k0, limit, v_column, H, V, BK, HP, VC, LINEAR)
    first = 0
    if CAUSAL:
        first = tl.maximum(k0 - (K - Q), 0) // BQ * BQ
    # A tile of keys beyond the limit has no queries.
    last = tl.where(k0 < limit, Q, 0)

    lse_hq = tl.zeros((HS, BQ), tl.float32)
    delta_hq = tl.zeros((HS, BQ), tl.float32)
    dk_hkd = tl.zeros((HS, BK, DC), tl.float32)
    dv_tile = tl.zeros((HS, BK, VC) if LINEAR else (BK, VC, HS), tl.float32)
    for q0 in range(first, last, BQ):
        q_hqd = load_rows(q, q0, Q, 0, H, D, BQ, HS, DC, True)
        do = load_rows(grad, q0, Q, 0, H, V, BQ, HP, VC, LINEAR)
        if NORMALISER == "softmax":
            offsets, inside = place_hq(n, q0, Q, H, HS, BQ)
            lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
            delta_hq = tl.load(delta + offsets, mask=inside, other=0.0)
        s_hqk, allowed = make_scores(
            q_hqd, k_hkd, q, k, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        a_hqk, factor_qk = make_code(s_hqk, lse_hq, eps, H, NORMALISER)
        fa_hqk, f_qk = apply_factors(a_hqk, factors, q0, k0, Q, K)
        rounded_hqk = fa_hqk.to(v_tile.dtype)
        # For a linear value network dz is the gradient of the output, [h, q, v].
        da_hqk, dz = code_gradient(
            fa_hqk, v_tile, do, v, grad, q0, k0, Q, limit, deep, None, H, V, NETWORK, RELU,
            PRECISION,
        )  # fmt: skip
        ds_hqk = score_gradient(
            da_hqk, a_hqk, factors, f_qk, factor_qk, delta_hq, allowed, eps, H, NORMALISER
        )
        if DC < D:
            q_hqd = load_rows(q, q0, Q, d_column, H, D, BQ, HS, DC, True)
        if VC < V:
            do = load_rows(grad, q0, Q, v_column, H, V, BQ, HP, VC, LINEAR)
            _, dz = column_gradient(fa_hqk, v_own, do, deep, None, H, V, NETWORK, RELU, PRECISION)
        ds_hkq = tl.permute(ds_hqk.to(q_hqd.dtype), (0, 2, 1))
        dk_hkd = tl.dot(ds_hkq, q_hqd, dk_hkd, input_precision=PRECISION)
        if LINEAR:
            a_hkq = tl.permute(rounded_hqk, (0, 2, 1))
            dv_tile = tl.dot(a_hkq, dz, dv_tile, input_precision=PRECISION)
        else:
            dz_kvq = tl.permute(dz, (0, 2, 1))
            a_kqh = tl.permute(rounded_hqk, (2, 1, 0))
            dv_tile = tl.dot(dz_kvq, a_kqh, dv_tile, input_precision=PRECISION)
    dv_tile = phi_gradient(dv_tile, v_own, RELU) if LINEAR else tl.permute(dv_tile, (0, 2, 1))
    store_rows(dk + n * K * H * D, dk_hkd * scale, k0, K, d_column, H, D, BK, HS, DC, True)
    store_rows(dv + n * K * H * V, dv_tile, k0, K, v_column, H, V, BK, HS, VC, LINEAR)


@triton.jit
def bias_kernel(
    grad, q, k, v, bias, lengths, deep, factors, lse, delta, dbias,
    k_stride, v_stride, bias_share, deep_share, factor_share, groups, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of one bias, summed over one group of the sequences that share it.

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
        limit = key_limit(lengths, n, K)
        q_n = q + n * Q * H * D
        grad_n = grad + n * Q * H * V
        k_n = k + n * k_stride
        v_n = v + n * v_stride
        q_hqd = load_rows(q_n, q0, Q, 0, H, D, BQ, HS, DC, True)
        do = load_rows(grad_n, q0, Q, 0, H, V, BQ, HP, VC, LINEAR)
        k_hkd = load_rows(k_n, k0, limit, 0, H, D, BK, HS, DC, True)
        v_tile = load_rows(v_n, k0, limit, 0, H, V, BK, HP, VC, LINEAR)
        if NORMALISER == "softmax":
            offsets, inside = place_hq(n, q0, Q, H, HS, BQ)
            lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
            delta_hq = tl.load(delta + offsets, mask=inside, other=0.0)
        s_hqk, allowed = make_scores(
            q_hqd, k_hkd, q_n, k_n, bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL, MASKED,
            PRECISION,
        )  # fmt: skip
        a_hqk, factor_qk = make_code(s_hqk, lse_hq, eps, H, NORMALISER)
        own_factors = factors
        if own_factors is not None:
            own_factors += n // factor_share * (tl.cast(Q, tl.int64) * K)
        fa_hqk, f_qk = apply_factors(a_hqk, own_factors, q0, k0, Q, K)
        matrices = deep
        if matrices is not None:
            matrices += n // deep_share * (H * V * V)
        da_hqk, _ = code_gradient(
            fa_hqk, v_tile, do, v_n, grad_n, q0, k0, Q, limit, matrices, None, H,
            V, NETWORK, RELU, PRECISION,
        )  # fmt: skip
        ds_hqk += score_gradient(
            da_hqk, a_hqk, own_factors, f_qk, factor_qk, delta_hq, allowed, eps, H, NORMALISER
        )
    head = tl.arange(0, HS)[:, None, None]
    query = (q0 + tl.arange(0, BQ))[None, :, None]
    key = (k0 + tl.arange(0, BK))[None, None, :]
    offsets = (head.to(tl.int64) * Q + query) * K + key
    inside = (head < H) & (query < Q) & (key < K)
    tl.store(dbias + tl.program_id(0) * set_size + offsets, ds_hqk, mask=inside)


@triton.jit
def deep_kernel(
    grad, q, k, v, bias, lengths, deep, factors, lse, ddeep,
    k_stride, v_stride, bias_share, deep_share, factor_share, groups, Q, K, scale, eps,
    H: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    HS: tl.constexpr, HP: tl.constexpr, DC: tl.constexpr, VC: tl.constexpr,
    NORMALISER: tl.constexpr, NETWORK: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of one set of deep matrices, summed over one group of query tiles.

    ddeep: zeros [M, groups, H, V, V]; each program adds to its own matrices.
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
        own_factors = factors
        if own_factors is not None:
            own_factors += n // factor_share * (tl.cast(Q, tl.int64) * K)
        limit = key_limit(lengths, n, K)
        last = limit
        if CAUSAL:
            last = tl.minimum(last, q0 + BQ + K - Q)
        q_n = q + n * Q * H * D
        grad_n = grad + n * Q * H * V
        k_n = k + n * k_stride
        v_n = v + n * v_stride
        q_hqd = load_rows(q_n, q0, Q, 0, H, D, BQ, HS, DC, True)
        do = load_rows(grad_n, q0, Q, 0, H, V, BQ, HP, VC, False)
        if NORMALISER == "softmax":
            offsets, inside = place_hq(n, q0, Q, H, HS, BQ)
            lse_hq = tl.load(lse + offsets, mask=inside, other=float("inf"))
        for k0 in range(0, last, BK):
            k_hkd = load_rows(k_n, k0, limit, 0, H, D, BK, HS, DC, True)
            v_tile = load_rows(v_n, k0, limit, 0, H, V, BK, HP, VC, False)
            s_hqk, _ = make_scores(
                q_hqd, k_hkd, q_n, k_n, member_bias, q0, k0, Q, K, limit, scale, H, D, CAUSAL,
                MASKED, PRECISION,
            )  # fmt: skip
            a_hqk, _ = make_code(s_hqk, lse_hq, eps, H, NORMALISER)
            a_hqk, _ = apply_factors(a_hqk, own_factors, q0, k0, Q, K)
            code_gradient(
                a_hqk, v_tile, do, v_n, grad_n, q0, k0, Q, limit, deep, ddeep, H, V, NETWORK,
                RELU, PRECISION,
            )  # fmt: skip
            # For the next keys, a thread may load what another stored.
            tl.debug_barrier()
