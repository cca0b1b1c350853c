// Fused attention on a CPU: output and gradients of every kind, for sequences of any length.
//
// A thread computes one sequence at a time (or some of its queries, if there are few sequences). The
// lanes of a vector are queries: q and g are transposed to [component][lane], keys and values are
// broadcast, KB keys at a time. Only gradients of keys and values need sums over lanes, by a transposing
// fold. Nothing of size queries x keys x heads x sequences is stored: the backward recomputes scores.
// Arithmetic is float32; inputs and results may be bfloat16 or float16.
//
// Without RMSHead, the heads of a linear value network are independent: `separate_*` processes one head
// and all keys at a time. Otherwise a pair needs all its heads: `crossed_*` processes all heads and KB
// keys at a time. Its codes are s * rf: s the score (or softmax weight), rf RMSHead's r times the factor.
//
// Shapes: N sequences, Q queries, K keys, H heads, D and V head sizes, M sets (of bias, factors and deep
// matrices, each shared by N / M sequences); C = H D, E = H V.
// Plain C ABI. Functions return 0, or 1 if memory cannot be allocated.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <omp.h>
#include <utility>

using i64 = int64_t;

extern "C" struct Call {  // as in cpu.py
    i64 threads, type, normaliser, network, relu, causal;
    i64 N, Q, K, H, D, V, M;
    i64 q_sequence, q_token, k_sequence, k_token, v_sequence, v_token;  // strides
    double scale, eps;
    const void *q, *k, *v;
    const float *bias, *factors, *deep;  // [M, H, Q, K], [M, Q, K], [M, H, V, V]; or null
    const int32_t* lengths;              // [N] or null
    void* out;                           // [N, Q, H, V]
    const void* grad;                    // as out
    void *dq, *dk, *dv;                  // contiguous
    float *dbias, *ddeep;                // as bias and deep; null if not needed
};

namespace {
#if defined(__AVX512F__)
constexpr int L = 16;
#elif defined(__AVX__)
constexpr int L = 8;
#else
constexpr int L = 4;
#endif
constexpr int DC = 4, KB = L / DC;  // components and keys at a time; their sums fill one vector
constexpr int MOST_DEEP = 16, MOST_VECTORS = 8;
enum { NONE, RMS, SOFTMAX }; enum { LINEAR, MLP, DEEP };

typedef float vf __attribute__((vector_size(4 * L)));
typedef float vfu __attribute__((vector_size(4 * L), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * L)));
typedef uint32_t vu __attribute__((vector_size(4 * L)));
typedef uint16_t vh __attribute__((vector_size(2 * L), aligned(2), may_alias));
typedef _Float16 vhf __attribute__((vector_size(2 * L), aligned(2), may_alias));
#define INLINE inline __attribute__((always_inline))
#define EACH(i, n) for (i64 i = 0; i < (n); i++)
INLINE vf ld(const float* p) { return *(const vf*)p; }
INLINE void st(float* p, vf x) { *(vf*)p = x; }
INLINE vf all(float x) { return x - vf{}; }
INLINE vf positive(vf x) { return x < 0.0f ? vf{} : x; }  // propagates NaN

struct bf16 { uint16_t bits; };
INLINE vf read(const float* p) { return *(const vfu*)p; }
INLINE vf read(const bf16* p) { return (vf)(__builtin_convertvector(*(const vh*)p, vu) << 16); }
INLINE vf read(const _Float16* p) { return __builtin_convertvector(*(const vhf*)p, vf); }
INLINE void write(float* p, vf x) { *(vfu*)p = x; }
INLINE void write(bf16* p, vf x) {
    vu u = (vu)x, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    *(vh*)p = __builtin_convertvector(x == x ? r : (vu{} + 0x7fc0), vh);
}
INLINE void write(_Float16* p, vf x) { *(vhf*)p = __builtin_convertvector(x, vhf); }
template <class T> INLINE vf read(const T* p, i64 n) {  // the first n numbers, padded with 0
    if (n >= L) return read(p);
    T part[L] = {};
    EACH(i, n) part[i] = p[i];
    return read(part);
}
template <class T> INLINE void write(T* p, vf x, i64 n) {
    if (n >= L) return write(p, x);
    T part[L];
    write(part, x);
    EACH(i, n) p[i] = part[i];
}

// Exchanges lanes between two rows; applied with distances 1, 2, 4, ... this is a transpose.
using Lanes = std::make_index_sequence<L>;
template <int M, int UP, size_t... J> INLINE vf mix(vf a, vf b, std::index_sequence<J...>) {
    return __builtin_shufflevector(a, b, (J & M ? L + J - M + UP : J + UP)...);
}
template <int M> INLINE vf low(vf a, vf b) { return mix<M, 0>(a, b, Lanes{}); }
template <int M> INLINE vf high(vf a, vf b) { return mix<M, M>(a, b, Lanes{}); }
template <int M = 1> INLINE void transpose(vf* x) {
    if constexpr (M < L) {
        EACH(i, L) if (!(i & M)) {
                vf a = x[i], b = x[i + M];
                x[i] = low<M>(a, b);
                x[i + M] = high<M>(a, b);
            }
        transpose<2 * M>(x);
    }
}
template <int M = 1> INLINE vf sums(vf* x) {  // lane j: the sum of the lanes of x[j]
    if constexpr (M < L) {
        for (int i = 0; i < L; i += 2 * M)
            x[i] = low<M>(x[i], x[i + M]) + high<M>(x[i], x[i + M]);
        return sums<2 * M>(x);
    }
    return x[0];
}
INLINE float sum(vf x) { float t = 0.0f; EACH(i, L) t += x[i]; return t; }
INLINE vf inverse_root(vf x) { EACH(i, L) x[i] = 1.0f / __builtin_sqrtf(x[i]); return x; }
INLINE vf inverted(vf total) { return total == 0.0f ? vf{} : 1.0f / total; }
INLINE vf exponential(vf x) {  // for x up to 88; propagates NaN; relative error about 1e-7
    vf y = x < -87.0f ? all(-87.0f) : x;
    vf n = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
    vf f = y - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    vf p = (1.9875691500e-4f * f + 1.3981999507e-3f) * f + 8.3334519073e-3f;
    p = ((p * f + 4.1665795894e-2f) * f + 1.6666665459e-1f) * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    vi e = __builtin_convertvector(n == n ? n : vf{}, vi);
    p = p * (vf)((e + 127) << 23);
    return x < -87.0f ? vf{} : p;
}

// Transposes at most L tokens of `count` numbers into vectors: number c of each token goes to to(c), for
// all c below `wanted`. Missing numbers are 0.
template <class T, class F>
void columns(const T* x, i64 stride, i64 tokens, i64 count, i64 wanted, float scale,
             F to) {
    for (i64 c0 = 0; c0 < wanted; c0 += L) {
        vf r[L];
        EACH(i, L) r[i] = i < tokens ? read(x + i * stride + c0, count - c0) * scale : vf{};
        transpose(r);
        EACH(i, L) if (c0 + i < wanted) st(to(c0 + i), r[i]);
    }
}
// The reverse: transposes vectors at from(c) into tokens.
template <class T, class F>
void tokens(F from, float scale, i64 count, i64 tokens, T* x, i64 stride, bool add) {
    for (i64 c0 = 0; c0 < count; c0 += L) {
        vf r[L];
        EACH(i, L) r[i] = c0 + i < count ? ld(from(c0 + i)) : vf{};
        transpose(r);
        EACH(i, std::min<i64>(L, tokens)) {
            T* p = x + i * stride + c0;
            vf before = add ? read(p, count - c0) : vf{};
            write(p, before + r[i] * scale, count - c0);
        }
    }
}

struct Free { void operator()(float* p) const { free(p); } };
using Memory = std::unique_ptr<float, Free>;
Memory memory(i64 count) {
    return Memory((float*)aligned_alloc(64, (count * sizeof(float) / 64 + 1) * 64));
}
i64 whole(i64 n, i64 of) { return (n + of - 1) / of * of; }

// State shared by all threads.
struct Problem : Call {
    i64 C, E, Cp, Ep, Qp, Kp;  // numbers per token; ...p: padded to whole vectors (keys: to KB)
    i64 W, tiles, parts;       // vectors per tile, tiles per sequence, parts that tiles are split into
    bool crossed, holes = false;   // holes: some bias is -inf
    i64 head_step, block_step, set_step;  // strides of biases: by head, by KB keys, by set
    Memory biases, multipliers;
    Problem(const Call& call, bool backward) : Call(call) {
        C = H * D, E = H * V;
        Cp = whole(C, L), Ep = whole(E, L), Qp = whole(Q, L), Kp = whole(K, KB);
        crossed = normaliser == RMS || network != LINEAR;
        head_step = crossed ? KB * Qp : Kp * Qp;
        block_step = crossed ? H * KB * Qp : KB * Qp;
        set_step = H * Kp * Qp;
        i64 vectors = Qp / L, groups = whole(vectors, MOST_VECTORS) / MOST_VECTORS;
        W = backward ? whole(vectors, groups) / groups : 1;
        tiles = whole(vectors, W) / W;
        // Not a function of `threads`, so that sums of key gradients do not depend on it.
        parts = std::min(tiles, whole(64, N) / N);
    }
    // Runs f(thread, begin, end) over parts of 0 .. n - 1; returns whether any f returned false.
    template <class F> bool parallel(i64 n, F f) const {
        int failed = 0, count = (int)std::max<i64>(1, std::min(threads, n));
#pragma omp parallel num_threads(count) reduction(| : failed)
        {
            // OpenMP may provide fewer threads than requested.
            for (i64 id = omp_get_thread_num(); id < count; id += omp_get_num_threads())
                failed |= !f(id, n * id / count, n * (id + 1) / count);
        }
        return failed;
    }
    float* at(float* set, i64 h, i64 k) const {
        return set + h * head_step + k / KB * block_step + k % KB * Qp;
    }
    bool transpose_pairs() {
        if (bias && !(biases = memory(M * set_step))) return false;
        if (factors && !(multipliers = memory(M * Kp * Qp))) return false;
        auto run = [&](const float* from, auto to) {
            for (i64 q0 = 0; q0 < Q; q0 += L)
                columns(from + q0 * K, K, Q - q0, K, Kp, 1.0f, [&](i64 k) { return to(k) + q0; });
        };
        if (factors) EACH(m, M) run(factors + m * Q * K, [&](i64 k) {
                return multipliers.get() + (m * Kp + k) * Qp;
            });
        holes = bias && parallel(M * H, [&](i64, i64 first, i64 last) {
            int lowest = 0;
            for (i64 i = first; i < last; i++) {
                const float* from = bias + i * Q * K;
                run(from, [&](i64 k) { return at(biases.get() + i / H * set_step, i % H, k); });
                EACH(j, Q * K) lowest |= from[j] == -INFINITY;
            }
            return !lowest;
        });
        return true;
    }
};

#define CHUNKS(count, c0, call) \
    for (i64 c0 = 0, end = (count); c0 < end;) { \
        if (DT != 2 && c0 + 4 <= end) { constexpr int N = 4; call; c0 += 4; } \
        else if (c0 + 2 <= end) { constexpr int N = 2; call; c0 += 2; } \
        else { constexpr int N = 1; call; c0 += 1; } \
    }

// The buffers and functions of one thread. DT: the head sizes D = V, or 0 for any.
struct Work {
    const Problem& p;
    Memory own;
    i64 n = 0, keys = 0;  // the sequence, its keys
    const float *bias = nullptr, *factor = nullptr, *deep = nullptr;  // of its sets
    float *dbias = nullptr, *ddeep = nullptr;
    // [vector][component][lane]: Q, G, DQ, O. Rows [key][head][component]: K, V, DK (then DV). Per
    // pair (`wide` lanes): S, A = dcode, Z = dz rf, R = rf and what RMSHead subtracts. Per query and
    // head: highest score, inverse of the sum of exponentials, mean gradient of codes.
    float *Q, *G, *DQ, *O, *K, *V, *DK, *S, *A, *Z, *R, *most, *inverse, *mean;
    i64 wide;
    Work(const Problem& problem, bool backward) : p(problem), wide(problem.W * L) {
        i64 pairs = p.crossed ? p.H * KB : p.Kp;
        if (p.normaliser == SOFTMAX) pairs = std::max(pairs, p.Kp);
        EACH(pass, 2) {  // first counts, then divides one allocation
            i64 used = 0;
            auto take = [&](i64 count) {
                used += whole(count, 16);
                return own ? own.get() + used - whole(count, 16) : nullptr;
            };
            Q = take(wide * p.Cp), K = take(p.Kp * p.C), V = take(p.Kp * p.E), O = take(p.Ep * L);
            S = take(pairs * wide), most = take(p.H * wide), inverse = take(p.H * wide);
            if (backward) {
                G = take(wide * p.Ep), DQ = take(wide * p.Cp), A = take(pairs * wide);
                Z = take(p.V * KB * wide), R = take(2 * KB * wide), mean = take(p.H * wide);
                if (p.parts == 1) DK = take(p.Kp * (p.C + p.E));
            }
            if (pass == 0 && !(own = memory(used))) return;
        }
    }
    template <class F> void typed(F f) const {  // calls f with a number of the tensors' type
        if (p.type == 0) f(float{});
        else if (p.type == 1) f(bf16{});
        else f(_Float16{});
    }
    void rows(const void* from, i64 sequence, i64 token, i64 count, bool relu, float* to) {
        typed([&](auto any) {
            const auto* x = (const decltype(any)*)from + n * sequence;
            EACH(t, keys) for (i64 c = 0; c < count; c += L) {
                vf y = read(x + t * token + c, count - c);
                write(to + t * count + c, relu ? positive(y) : y, count - c);
            }
        });
        std::fill(to + keys * count, to + whole(keys, KB) * count, 0.0f);
    }
    void begin(i64 sequence) {
        n = sequence;
        keys = p.lengths ? std::max<i64>(0, std::min<i64>(p.K, p.lengths[n])) : p.K;
        const i64 set = n / (p.N / p.M);
        if (p.bias) bias = p.biases.get() + set * p.set_step;
        if (p.factors) factor = p.multipliers.get() + set * p.Kp * p.Qp;
        if (p.deep) deep = p.deep + set * p.E * p.V;
        rows(p.k, p.k_sequence, p.k_token, p.C, false, K);
        rows(p.v, p.v_sequence, p.v_token, p.E, p.relu && p.network == LINEAR, V);
    }
    // The number of keys that queries before `end` may see, rounded up to whole blocks.
    i64 seen(i64 end) const { return whole(p.causal ? std::min(keys, end + p.K - p.Q) : keys, KB); }
    // Whether any pair of queries from q0 and KB keys from k0 may be masked.
    bool cut(i64 q0, i64 k0) const {
        return p.holes || k0 + KB > keys || (p.causal && k0 + KB - 1 > q0 + p.K - p.Q);
    }
    // The bias, or 0; with `masks`, -inf for masked pairs.
    INLINE vf start(i64 h, i64 k0, int j, i64 q0, bool masks) const {
        if (masks && k0 + j >= keys) return all(-INFINITY);
        vf b = vf{};
        if (bias) b = ld(bias + h * p.head_step + k0 / KB * p.block_step + j * p.Qp + q0);
        if (!masks || !p.causal) return b;
        vi lane;
        EACH(i, L) lane[i] = i;
        return lane >= (int)(k0 + j - q0 - p.K + p.Q) ? b : all(-INFINITY);
    }
    INLINE vf factor_of(i64 k, i64 q0) const {
        return factor ? ld(factor + k * p.Qp + q0) : all(1.0f);
    }
    // Adds dot products of one head's vectors with KB rows.
    INLINE void products(const float* x, const float* rows, i64 size, i64 step, vf* acc) const {
#pragma GCC unroll 4
        EACH(d, size) EACH(j, KB) acc[j] += ld(x + d * L) * rows[j * step + d];
    }
    // Scores of the queries at Qv, from q0, with KB keys; `hidden` where masked.
    template <int DT>
    INLINE void scores(const float* Qv, i64 q0, i64 k0, i64 h, float hidden, vf* acc) const {
        const i64 size = DT ? DT : p.D;
        const bool masks = cut(q0, k0);
        EACH(j, KB) acc[j] = start(h, k0, j, q0, masks);
        products(Qv + h * size * L, K + k0 * p.C + h * size, size, p.C, acc);
        EACH(j, masks ? KB : 0)
            acc[j] = start(h, k0, j, q0, true) == -INFINITY ? all(hidden) : acc[j];
    }
    // Writes scores with all keys to `to`, with stride `wide`; for softmax returns the highest.
    template <int DT, int NORM>
    INLINE vf head_scores(const float* Qv, i64 q0, i64 h, i64 limit, float* to) const {
        vf highest = all(-INFINITY);
        for (i64 k0 = 0; k0 < limit; k0 += KB) {
            vf acc[KB];
            scores<DT>(Qv, q0, k0, h, NORM == SOFTMAX ? -INFINITY : 0.0f, acc);
            EACH(j, KB) {
                st(to + (k0 + j) * wide, acc[j]);
                if (NORM == SOFTMAX) highest = acc[j] > highest ? acc[j] : highest;
            }
        }
        return highest == -INFINITY ? vf{} : highest;
    }
    // Replaces scores by their exponentials; returns the sum.
    INLINE vf exponentials(float* s, i64 limit, vf highest) const {
        vf total = vf{};
        EACH(k, limit) {
            vf e = exponential(ld(s + k * wide) - highest);
            st(s + k * wide, e);
            total += e;
        }
        return total;
    }
    // Adds codes times the values of keys from k0 to O, then scales O.
    template <int DT, int N>
    INLINE void add_values(const float* codes, i64 k0, i64 count, i64 h, i64 v0, vf scale) {
        const i64 at = h * (DT ? DT : p.V) + v0;
        const float* v = V + k0 * p.E + at;
        vf acc[N];
        EACH(d, N) acc[d] = ld(O + (at + d) * L);
        EACH(k, count) EACH(d, N) acc[d] += ld(codes + k * wide) * v[k * p.E + d];
        EACH(d, N) st(O + (at + d) * L, acc[d] * scale);
    }
    template <int DT, int NORM> void separate_forward(i64 q0) {
        const i64 limit = seen(q0 + L);
        EACH(h, p.H) {
            vf highest = head_scores<DT, NORM>(Q, q0, h, limit, S), scale = all(1.0f);
            if (NORM == SOFTMAX) scale = inverted(exponentials(S, limit, highest));
            if (factor) EACH(k, limit) st(S + k * wide, ld(S + k * wide) * factor_of(k, q0));
            CHUNKS(DT ? DT : p.V, v0, (add_values<DT, N>(S, 0, limit, h, v0, scale)))
        }
    }
    // Writes the codes of KB keys and all heads, without rf, to `to`; returns `r` of RMSHead and `rf`.
    template <int DT, int NORM>
    INLINE void codes(const float* Qv, i64 q0, i64 lane, i64 k0, float* to, vf* r, vf* rf) const {
        vf squares[KB];
        EACH(j, KB) squares[j] = vf{};
        EACH(h, p.H) {
            vf acc[KB];
            scores<DT>(Qv, q0, k0, h, NORM == SOFTMAX ? -INFINITY : 0.0f, acc);
            EACH(j, KB) {
                if (NORM == RMS) squares[j] += acc[j] * acc[j];
                if (NORM == SOFTMAX) acc[j] = exponential(acc[j] - ld(most + h * wide + lane));
                if (NORM == SOFTMAX) acc[j] *= ld(inverse + h * wide + lane);
                st(to + (h * KB + j) * wide, acc[j]);
            }
        }
        EACH(j, KB) {
            r[j] = NORM == RMS ? inverse_root(squares[j] * (1.0f / p.H) + (float)p.eps) : all(1.0f);
            rf[j] = factor ? r[j] * factor_of(k0 + j, q0) : r[j];
        }
    }
    // Highest score and inverse sum of exponentials of each head.
    template <int DT> void softmax_sums(const float* Qv, i64 q0, i64 lane, i64 limit) {
        EACH(h, p.H) {
            vf highest = head_scores<DT, SOFTMAX>(Qv, q0, h, limit, S);
            st(most + h * wide + lane, highest);
            st(inverse + h * wide + lane, inverted(exponentials(S, limit, highest)));
        }
    }
    // z, the input of phi: sums over heads of codes times values, for N components of KB keys.
    template <int DT, int N>
    INLINE void hidden_layer(const float* codes, i64 k0, i64 v0, const vf* rf, vf (*z)[N]) const {
        const i64 size = DT ? DT : p.V;
        EACH(j, KB) EACH(d, N) z[j][d] = vf{};
        EACH(h, p.H) {
            const float* v = V + k0 * p.E + h * size + v0;
            EACH(j, KB) EACH(d, N) z[j][d] += ld(codes + (h * KB + j) * wide) * v[j * p.E + d];
        }
        EACH(j, KB) EACH(d, N) z[j][d] *= rf[j];
    }
    template <int DT, int N> INLINE void mlp_forward(i64 k0, i64 v0, const vf* rf) {
        const i64 size = DT ? DT : p.V;
        vf z[KB][N];
        hidden_layer<DT, N>(S, k0, v0, rf, z);
        EACH(j, KB) EACH(d, N) z[j][d] = (p.relu ? positive(z[j][d]) : z[j][d]) * rf[j];
        EACH(h, p.H) {
            float* o = O + (h * size + v0) * L;
            vf acc[N];
            EACH(d, N) acc[d] = ld(o + d * L);
            EACH(j, KB) EACH(d, N) acc[d] += ld(S + (h * KB + j) * wide) * z[j][d];
            EACH(d, N) st(o + d * L, acc[d]);
        }
    }
    // Both hidden layers of key k: phi(z) and phi(y).
    void deep_layers(const float* codes, i64 k, vf rf, vf* z, vf* y) const {
        EACH(i, p.V) z[i] = y[i] = vf{};
        EACH(h, p.H) {
            vf a = ld(codes + h * KB * wide) * rf;
            EACH(i, p.V) z[i] += a * V[k * p.E + h * p.V + i];
        }
        EACH(i, p.relu ? p.V : 0) z[i] = positive(z[i]);
        EACH(h, p.H) EACH(u, p.V) y[u] += ld(codes + h * KB * wide) * rf * deep_row(h, u, z);
        if (p.relu) EACH(i, p.V) y[i] = positive(y[i]);
    }
    INLINE vf deep_row(i64 h, i64 u, const vf* z) const {
        const float* w = deep + (h * p.V + u) * p.V;
        vf t = vf{};
        EACH(i, p.V) t += z[i] * w[i];
        return t;
    }
    void deep_forward(i64 k0, const vf* rf) {
        vf z[MOST_DEEP], y[MOST_DEEP];
        EACH(j, KB) {
            deep_layers(S + j * wide, k0 + j, rf[j], z, y);
            EACH(i, p.E) {
                vf a = ld(S + (i / p.V * KB + j) * wide) * rf[j];
                st(O + i * L, ld(O + i * L) + a * y[i % p.V]);
            }
        }
    }
    template <int DT, int NORM> void crossed_forward(i64 q0) {
        const i64 limit = seen(q0 + L);
        if (NORM == SOFTMAX) softmax_sums<DT>(Q, q0, 0, limit);
        for (i64 k0 = 0; k0 < limit; k0 += KB) {
            vf r[KB], rf[KB];
            codes<DT, NORM>(Q, q0, 0, k0, S, r, rf);
            if (p.network == DEEP) deep_forward(k0, rf);
            else if (p.network == MLP) {
                CHUNKS(DT ? DT : p.V, v0, (mlp_forward<DT, N>(k0, v0, rf)))
            } else
                EACH(h, p.H) {
                    float* s = S + h * KB * wide;
                    EACH(j, KB) st(s + j * wide, ld(s + j * wide) * rf[j]);
                    CHUNKS(DT ? DT : p.V, v0, (add_values<DT, N>(s, k0, KB, h, v0, all(1.0f))))
                }
        }
    }
    // Transpose the sequence's queries into vectors, and vectors into results.
    void load(const void* x, i64 first, i64 token, i64 q0, i64 count, double scale, float* to) {
        typed([&](auto t) {
            columns((const decltype(t)*)x + first + q0 * token, token, p.Q - q0, count,
                    whole(count, L), (float)scale, [&](i64 c) { return to + c * L; });
        });
    }
    void store(const float* from, i64 q0, i64 count, double scale, void* to) const {
        typed([&](auto t) {
            tokens([&](i64 c) { return from + c * L; }, (float)scale, count, p.Q - q0,
                   (decltype(t)*)to + (n * p.Q + q0) * count, count, false);
        });
    }
    template <int DT, int NORM> void forward(i64 part) {
        const i64 last = p.tiles * (part + 1) / p.parts * L;
        for (i64 q0 = p.tiles * part / p.parts * L; q0 < last; q0 += L) {
            load(p.q, n * p.q_sequence, p.q_token, q0, p.C, p.scale, Q);
            std::fill_n(O, p.Ep * L, 0.0f);
            if (p.crossed) crossed_forward<DT, NORM>(q0);
            else if constexpr (NORM != RMS) separate_forward<DT, NORM>(q0);
            store(O, q0, p.E, 1.0, p.out);
        }
    }
    // Writes gradients of codes to A and dz rf to Z, for queries at `lane` of the tile and KB keys.
    // Adds the sums over heads of s * A to `along`.
    template <int DT, int N>
    INLINE void mlp_backward(const float* Gv, i64 lane, i64 k0, i64 v0, const vf* rf, vf* along) {
        const i64 size = DT ? DT : p.V;
        vf z[KB][N], u[KB][N];
        hidden_layer<DT, N>(S + lane, k0, v0, rf, z);
        EACH(j, KB) EACH(d, N) u[j][d] = vf{};
        EACH(h, p.H) {
            const float *s = S + h * KB * wide + lane, *g = Gv + (h * size + v0) * L;
            EACH(j, KB) EACH(d, N) u[j][d] += ld(s + j * wide) * ld(g + d * L);
        }
        EACH(j, KB) EACH(d, N) {
                u[j][d] *= rf[j];
                if (p.relu) {
                    u[j][d] = z[j][d] <= 0.0f ? vf{} : u[j][d];
                    z[j][d] = positive(z[j][d]);
                }
                st(Z + ((v0 + d) * KB + j) * wide + lane, u[j][d] * rf[j]);
            }
        constexpr int P = KB < 2 ? KB : 2;
        for (int j0 = 0; j0 < KB; j0 += P)
            EACH(h, p.H) {
                const float* v = V + k0 * p.E + h * size + v0;
                vf acc[P];
                EACH(j, P) acc[j] = v0 ? ld(A + (h * KB + j0 + j) * wide + lane) : vf{};
                EACH(d, N) {
                    vf g = ld(Gv + (h * size + v0 + d) * L);
                    EACH(j, P) acc[j] += g * z[j0 + j][d] + u[j0 + j][d] * v[(j0 + j) * p.E + d];
                }
                EACH(j, P) {
                    const i64 at = (h * KB + j0 + j) * wide + lane;
                    st(A + at, acc[j]);
                    if (v0 + N == size) along[j0 + j] += acc[j] * ld(S + at);
                }
            }
    }
    void deep_backward(const float* Gv, i64 lane, i64 k0, const vf* rf, vf* along, float* dw) {
        vf z[MOST_DEEP], y[MOST_DEEP], dz[MOST_DEEP], dy[MOST_DEEP];
        EACH(j, KB) {
            const float* s = S + j * wide + lane;
            float* da = A + j * wide + lane;
            deep_layers(s, k0 + j, rf[j], z, y);
            EACH(i, p.V) dz[i] = dy[i] = vf{};
            EACH(h, p.H) EACH(u, p.V)
                dy[u] += ld(s + h * KB * wide) * rf[j] * ld(Gv + (h * p.V + u) * L);
            EACH(u, p.relu ? p.V : 0) dy[u] = y[u] <= 0.0f ? vf{} : dy[u];
            EACH(h, p.H) {
                const vf a = ld(s + h * KB * wide) * rf[j];
                vf sum = vf{};
                EACH(u, p.V) {
                    const i64 row = (h * p.V + u) * p.V;
                    const vf ay = a * dy[u];
                    sum += ld(Gv + (h * p.V + u) * L) * y[u] + dy[u] * deep_row(h, u, z);
                    EACH(i, p.V) dz[i] += ay * deep[row + i];
                    EACH(i, dw ? p.V : 0)
                        st(dw + (row + i) * L, ld(dw + (row + i) * L) + ay * z[i]);
                }
                st(da + h * KB * wide, sum);
            }
            EACH(i, p.V) {
                if (p.relu) dz[i] = z[i] <= 0.0f ? vf{} : dz[i];
                st(Z + (i * KB + j) * wide + lane, dz[i] * rf[j]);
            }
            EACH(h, p.H) {
                vf sum = ld(da + h * KB * wide);
                EACH(i, p.V) sum += dz[i] * V[(k0 + j) * p.E + h * p.V + i];
                st(da + h * KB * wide, sum);
                along[j] += sum * ld(s + h * KB * wide);
            }
        }
    }
    template <int DT, int NORM>
    INLINE void code_gradients(i64 q0, i64 lane, i64 k0, float* dw, vf* r, vf* rf, vf* along) {
        const float *Qv = Q + lane * p.Cp, *Gv = G + lane * p.Ep;
        EACH(j, KB) along[j] = vf{};
        codes<DT, NORM>(Qv, q0 + lane, lane, k0, S + lane, r, rf);
        if (p.network == DEEP) deep_backward(Gv, lane, k0, rf, along, dw);
        else if (p.network == MLP) {
            CHUNKS(DT ? DT : p.V, v0, (mlp_backward<DT, N>(Gv, lane, k0, v0, rf, along)))
        } else
            EACH(h, p.H) {
                const i64 size = DT ? DT : p.V;
                vf acc[KB] = {};
                products(Gv + h * size * L, V + k0 * p.E + h * size, size, p.E, acc);
                EACH(j, KB) {
                    st(A + (h * KB + j) * wide + lane, acc[j]);
                    along[j] += acc[j] * ld(S + (h * KB + j) * wide + lane);
                }
            }
    }
    // Replaces A by the gradient of scores and, for a linear value network, S by the complete code.
    // s, da: for this head and KB keys.
    template <int NORM>
    INLINE void score_gradients(i64 q0, i64 lane, i64 k0, i64 h, float* s, float* da, vf* ds) {
        const bool masks = cut(q0, k0), linear = p.network == LINEAR;
        EACH(j, KB) {
            vf x = ld(s + j * wide + lane), y = ld(da + j * wide + lane);
            if (NORM == RMS) {
                vf rf = ld(R + j * wide + lane);
                ds[j] = rf * y - x * ld(R + (KB + j) * wide + lane);
                if (linear) st(s + j * wide + lane, x * rf);
            } else {
                if (NORM == SOFTMAX && !p.crossed) x *= ld(inverse + h * wide + lane);
                vf f = factor_of(k0 + j, q0 + lane);
                ds[j] = f * y;
                if (NORM == SOFTMAX) ds[j] = x * (ds[j] - ld(mean + h * wide + lane));
                if (linear && (NORM == SOFTMAX || factor)) st(s + j * wide + lane, x * f);
            }
            if (masks) ds[j] = start(h, k0, j, q0 + lane, true) == -INFINITY ? vf{} : ds[j];
            st(da + j * wide + lane, ds[j]);
            if (dbias) {
                float* b = dbias + h * p.head_step + k0 / KB * p.block_step + j * p.Qp + q0 + lane;
                st(b, ld(b) + ds[j]);
            }
        }
    }
    INLINE void add_rows(vf sum, int count, i64 step, float* to) const {
        float x[L];
        write(x, sum);
        EACH(j, KB) EACH(d, count) to[j * step + d] += x[j * DC + d];
    }
    template <int DT, int NORM, int N>
    INLINE void key_gradients(i64 q0, i64 width, i64 k0, i64 h, i64 d0, float* s, float* da) {
        const i64 size = DT ? DT : p.D, at = k0 * p.C + h * size + d0;
        const float* k = K + at;
        vf dk[L];
        EACH(i, L) dk[i] = vf{};
        for (i64 lane = 0; lane < width; lane += L) {
            const i64 column = lane * p.Cp + (h * size + d0) * L;
            vf ds[KB];
            if (d0 == 0) score_gradients<NORM>(q0, lane, k0, h, s, da, ds);
            else
                EACH(j, KB) ds[j] = ld(da + j * wide + lane);
            EACH(d, N) {
                vf x = ld(Q + column + d * L), y = ld(DQ + column + d * L);
                EACH(j, KB) {
                    dk[j * DC + d] += ds[j] * x;
                    y += ds[j] * k[j * p.C + d];
                }
                st(DQ + column + d * L, y);
            }
        }
        add_rows(sums(dk), N, p.C, DK + at);
    }
    template <int DT, int N, bool HIDDEN>
    INLINE void value_gradients(i64 width, i64 k0, i64 h, i64 v0, const float* s) {
        const i64 size = DT ? DT : p.V;
        vf dv[L];
        EACH(i, L) dv[i] = vf{};
        for (i64 lane = 0; lane < width; lane += L) {
            vf a[KB];
            EACH(j, KB) a[j] = ld(s + j * wide + lane);
            EACH(d, N) {
                const float* g = G + lane * p.Ep + (h * size + v0 + d) * L;
                const float* x = HIDDEN ? Z + (v0 + d) * KB * wide + lane : g;
                EACH(j, KB) dv[j * DC + d] += a[j] * ld(HIDDEN ? x + j * wide : x);
            }
        }
        add_rows(sums(dv), N, p.E, DK + p.Kp * p.C + k0 * p.E + h * size + v0);
    }
    // Gradients of keys, values and queries of one head, from those of codes.
    template <int DT, int NORM, bool HIDDEN>
    INLINE void head_gradients(i64 q0, i64 width, i64 k0, i64 h, float* s, float* da) {
        CHUNKS(DT ? DT : p.D, d0, (key_gradients<DT, NORM, N>(q0, width, k0, h, d0, s, da)))
        CHUNKS(DT ? DT : p.V, v0, (value_gradients<DT, N, HIDDEN>(width, k0, h, v0, s)))
    }
    template <int DT, int NORM> void separate_backward(i64 q0, i64 width, i64 limit) {
        EACH(h, p.H) {
            for (i64 lane = 0; lane < width; lane += L) {
                vf highest = head_scores<DT, NORM>(Q + lane * p.Cp, q0 + lane, h, limit, S + lane);
                const i64 size = DT ? DT : p.V;
                const float *g = G + lane * p.Ep + h * size * L, *v = V + h * size;
                for (i64 k0 = 0; k0 < limit; k0 += KB) {
                    vf acc[KB] = {};
                    products(g, v + k0 * p.E, size, p.E, acc);
                    EACH(j, KB) st(A + (k0 + j) * wide + lane, acc[j]);
                }
                if (NORM == SOFTMAX) {
                    vf total = inverted(exponentials(S + lane, limit, highest)), along = vf{};
                    EACH(k, limit)
                        along += ld(S + k * wide + lane) * ld(A + k * wide + lane) *
                                 factor_of(k, q0 + lane);
                    st(inverse + h * wide + lane, total);
                    st(mean + h * wide + lane, along * total);
                }
            }
            for (i64 k0 = 0; k0 < limit; k0 += KB)
                head_gradients<DT, NORM, false>(q0, width, k0, h, S + k0 * wide, A + k0 * wide);
        }
    }
    template <int DT, int NORM> void crossed_backward(i64 q0, i64 width, i64 limit) {
        vf r[KB], rf[KB], along[KB];
        if (NORM == SOFTMAX) {
            // The mean over all keys needs a first pass over them.
            std::fill_n(mean, p.H * wide, 0.0f);
            for (i64 lane = 0; lane < width; lane += L) {
                softmax_sums<DT>(Q + lane * p.Cp, q0 + lane, lane, limit);
                for (i64 k0 = 0; k0 < limit; k0 += KB) {
                    code_gradients<DT, NORM>(q0, lane, k0, nullptr, r, rf, along);
                    EACH(i, p.H * KB) {
                        float* to = mean + i / KB * wide + lane;
                        vf x = ld(S + i * wide + lane) * ld(A + i * wide + lane);
                        st(to, ld(to) + x * rf[i % KB]);
                    }
                }
            }
        }
        for (i64 k0 = 0; k0 < limit; k0 += KB) {
            for (i64 lane = 0; lane < width; lane += L) {
                code_gradients<DT, NORM>(q0, lane, k0, ddeep, r, rf, along);
                if (NORM == RMS) EACH(j, KB) {
                        st(R + j * wide + lane, rf[j]);
                        vf less = rf[j] * along[j] * r[j] * r[j] * (1.0f / p.H);
                        st(R + (KB + j) * wide + lane, less);
                    }
            }
            EACH(h, p.H) {
                float *s = S + h * KB * wide, *da = A + h * KB * wide;
                if (p.network == LINEAR) head_gradients<DT, NORM, false>(q0, width, k0, h, s, da);
                else head_gradients<DT, NORM, true>(q0, width, k0, h, s, da);
            }
        }
    }
    template <int DT, int NORM> void backward(i64 part) {
        const i64 first = p.tiles * part / p.parts, last = p.tiles * (part + 1) / p.parts;
        std::fill_n(DK, p.Kp * (p.C + p.E), 0.0f);
        for (i64 tile = first; tile < last; tile++) {
            const i64 q0 = tile * wide, width = std::min(wide, p.Qp - q0);
            for (i64 lane = 0; lane < width; lane += L) {
                load(p.q, n * p.q_sequence, p.q_token, q0 + lane, p.C, p.scale, Q + lane * p.Cp);
                load(p.grad, n * p.Q * p.E, p.E, q0 + lane, p.E, 1.0, G + lane * p.Ep);
            }
            std::fill_n(DQ, width * p.Cp, 0.0f);
            const i64 limit = seen(q0 + width);
            if (p.crossed) crossed_backward<DT, NORM>(q0, width, limit);
            else if constexpr (NORM != RMS) separate_backward<DT, NORM>(q0, width, limit);
            for (i64 lane = 0; lane < width; lane += L)
                store(DQ + lane * p.Cp, q0 + lane, p.C, p.scale, p.dq);
        }
        float* dv = DK + p.Kp * p.C;
        if (p.relu && p.network == LINEAR) EACH(i, keys * p.E) dv[i] = V[i] <= 0.0f ? 0.0f : dv[i];
    }
    // Writes the gradients of keys and values, summed over parts.
    void finish(i64 sequence, const float* sums, i64 step) const {
        typed([&](auto any) {
            auto run = [&](const float* from, i64 size, void* to) {
                for (i64 i = 0; i < size; i += L) {
                    vf x = vf{};
                    EACH(part, p.parts) x += read(from + part * step + i, size - i);
                    write((decltype(any)*)to + sequence * size + i, x, size - i);
                }
            };
            run(sums, p.K * p.C, p.dk);
            run(sums + p.Kp * p.C, p.K * p.E, p.dv);
        });
    }
};

template <int I> using Int = std::integral_constant<int, I>;
template <class F> int specialised(const Problem& p, F f) {
    auto sized = [&](auto norm) {
        const i64 size = p.D == p.V ? p.D : 0;
        return size == 4 ? f(Int<4>{}, norm) : size == 2 ? f(Int<2>{}, norm) : f(Int<0>{}, norm);
    };
    if (p.normaliser == NONE) return sized(Int<NONE>{});
    return p.normaliser == RMS ? sized(Int<RMS>{}) : sized(Int<SOFTMAX>{});
}
}  // namespace

extern "C" int hyla_attention_forward(const Call* call) {
    Problem p(*call, false);
    return !p.transpose_pairs() || specialised(p, [&](auto size, auto norm) {
        return p.parallel(p.N * p.parts, [&](i64, i64 first, i64 last) {
            Work work(p, false);
            for (i64 i = first; work.own && i < last; i++) {
                work.begin(i / p.parts);
                work.forward<size.value, norm.value>(i % p.parts);
            }
            return (bool)work.own;
        });
    });
}

extern "C" int hyla_attention_backward(const Call* call) {
    Problem p(*call, true);
    const i64 share = p.N / p.M * p.parts, part_size = p.Kp * (p.C + p.E);  // share: items per set
    const i64 bias_size = p.dbias ? p.set_step : 0, deep_size = p.ddeep ? p.E * p.V * L : 0;
    Memory partial, sums = memory(std::max<i64>(1, p.threads) * (bias_size + deep_size));
    if (p.parts > 1) partial = memory(p.N * p.parts * part_size);
    if (!sums || (p.parts > 1 && !partial) || !p.transpose_pairs()) return 1;
    // Gradients of head h of a set: adds the sums of threads in order.
    auto finish = [&](i64 set, i64 h, i64 first, i64 last) {
        for (i64 t = first; t < last; t++) {
            float* from = sums.get() + t * (bias_size + deep_size);
            for (i64 q0 = 0; bias_size && q0 < p.Q; q0 += L)
                tokens([&](i64 k) { return p.at(from, h, k) + q0; }, 1.0f, p.K, p.Q - q0,
                       p.dbias + ((set * p.H + h) * p.Q + q0) * p.K, p.K, t > first);
            EACH(i, deep_size ? p.V * p.V : 0) {
                float* to = p.ddeep + (set * p.H + h) * p.V * p.V + i;
                const float* lanes = from + bias_size + (h * p.V * p.V + i) * L;
                *to = (t > first ? *to : 0.0f) + sum(ld(lanes));
            }
        }
    };
    // Threads split the sequences of one set at a time or, if a set has too few, the sets.
    const bool together = p.M == 1 || share >= p.threads;
    const i64 count = together ? share : p.M, used = std::min(count, std::max<i64>(1, p.threads));
    bool failed = false;
    for (i64 m = 0; m < p.M; m += together ? 1 : p.M) {
        failed |= specialised(p, [&](auto size, auto norm) {
            return p.parallel(count, [&](i64 id, i64 first, i64 last) {
                Work work(p, true);
                float* own = sums.get() + id * (bias_size + deep_size);
                if (bias_size) work.dbias = own;
                if (deep_size) work.ddeep = own + bias_size;
                for (i64 set = together ? m : first; set < (together ? m + 1 : last); set++) {
                    std::fill_n(own, bias_size + deep_size, 0.0f);
                    const i64 begin = set * share + (together ? first : 0);
                    const i64 end = set * share + (together ? last : share);
                    for (i64 i = begin; work.own && i < end; i++) {
                        if (partial) work.DK = partial.get() + i * part_size;
                        work.begin(i / p.parts);
                        work.backward<size.value, norm.value>(i % p.parts);
                        if (!partial) work.finish(i, work.DK, 0);
                    }
                    if (!together) EACH(h, p.H) finish(set, h, id, id + 1);
                }
                return (bool)work.own;
            });
        });
        if (together) p.parallel(p.H, [&](i64, i64 first, i64 last) {
            for (i64 h = first; h < last; h++) finish(m, h, 0, used);
            return true;
        });
    }
    if (partial) p.parallel(p.N, [&](i64, i64 first, i64 last) {
        const Work work(p, false);
        for (i64 n = first; n < last; n++)
            work.finish(n, partial.get() + n * p.parts * part_size, part_size);
        return true;
    });
    return failed;
}
