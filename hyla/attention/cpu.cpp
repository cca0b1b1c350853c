// Fused attention on a CPU: output and gradients of every kind, for sequences of any length.
//
// One thread computes a sequence (or, where there are few, some queries of it) at a time. Lanes of a
// vector are queries: q and g are transposed to [component][lane], keys and values are broadcast,
// KB keys at a time. Only gradients of keys and values need sums over lanes, by a transposing fold.
// Nothing of size queries x keys x heads x sequences leaves the cache; the backward computes scores
// again. Values of a token are always float32 here; inputs and results may be bfloat16 or float16.
//
// Without RMSHead, heads of a linear value network are independent: `Work::separate_*` takes one
// head and all keys at a time. All else needs the heads of a pair together: `Work::crossed_*` takes
// KB keys and all heads at a time. There a code is s * rf, with s the score (of a softmax its code)
// and rf the RMSHead factor r times the given factor f of the pair.
//
// Shapes: N sequences, Q queries, K keys, H heads, D and V head sizes, M sets; C = H D, E = H V.
// Plain C ABI. Functions return 0, or 1 if there is no memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <omp.h>
#include <utility>

extern "C" struct Call {  // as in cpu.py
    int64_t threads, type, normaliser, network, relu, causal;
    int64_t N, Q, K, H, D, V;
    int64_t bias_sets, deep_sets, factor_sets;
    int64_t q_sequence, q_token, k_sequence, k_token, v_sequence, v_token;  // strides
    double scale, eps;
    const void *q, *k, *v;
    const float* bias;       // [M, H, Q, K] or null
    const float* factors;    // [M, Q, K] or null
    const float* deep;       // [M, H, V, V] or null
    const int32_t* lengths;  // [N] or null
    void* out;               // [N, Q, H, V]
    const void* grad;        // as out
    void *dq, *dk, *dv;      // contiguous
    float *dbias, *ddeep;    // as bias and deep; null if not wanted
};

namespace {
#if defined(__AVX512F__)
constexpr int L = 16;
#elif defined(__AVX__)
constexpr int L = 8;
#else
constexpr int L = 4;
#endif
constexpr int DC = 4, KB = L / DC;  // components and keys at a time: together one vector of sums
constexpr int MOST_DEEP = 16, MOST_VECTORS = 8;
enum { NONE, RMS, SOFTMAX };
enum { LINEAR, MLP, DEEP };

typedef float vf __attribute__((vector_size(4 * L)));
typedef float vfu __attribute__((vector_size(4 * L), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * L)));
typedef uint32_t vu __attribute__((vector_size(4 * L)));
typedef uint16_t vh __attribute__((vector_size(2 * L), aligned(2), may_alias));
typedef _Float16 vhf __attribute__((vector_size(2 * L), aligned(2), may_alias));
#define INLINE inline __attribute__((always_inline))
INLINE vf ld(const float* p) { return *(const vf*)p; }
INLINE void st(float* p, vf x) { *(vf*)p = x; }
INLINE vf all(float x) { return x - vf{}; }
INLINE vf positive(vf x) { return x < 0.0f ? vf{} : x; }  // keeps NaN

struct bf16 { uint16_t bits; };
INLINE vf read(const float* p) { return *(const vfu*)p; }
INLINE vf read(const bf16* p) { return (vf)(__builtin_convertvector(*(const vh*)p, vu) << 16); }
INLINE vf read(const _Float16* p) { return __builtin_convertvector(*(const vhf*)p, vf); }
INLINE void write(float* p, vf x) { *(vfu*)p = x; }
INLINE void write(bf16* p, vf x) {
    vu u = (vu)x;
    vu r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    *(vh*)p = __builtin_convertvector(x == x ? r : (vu{} + 0x7fc0), vh);
}
INLINE void write(_Float16* p, vf x) { *(vhf*)p = __builtin_convertvector(x, vhf); }
template <class T> INLINE vf read(const T* p, int64_t n) {  // the first n numbers, then 0
    if (n >= L) return read(p);
    T part[L] = {};
    for (int64_t i = 0; i < n; i++) part[i] = p[i];
    return read(part);
}
template <class T> INLINE void write(T* p, vf x, int64_t n) {
    if (n >= L) return write(p, x);
    T part[L];
    write(part, x);
    for (int64_t i = 0; i < n; i++) p[i] = part[i];
}

// Exchange of lanes between two rows; with all distances 1, 2, 4, ... a transpose.
template <int M, size_t... J> INLINE vf low(vf a, vf b, std::index_sequence<J...>) {
    return __builtin_shufflevector(a, b, ((J & M) ? L + (J - M) : J)...);
}
template <int M, size_t... J> INLINE vf high(vf a, vf b, std::index_sequence<J...>) {
    return __builtin_shufflevector(a, b, ((J & M) ? L + J : J + M)...);
}
using Lanes = std::make_index_sequence<L>;
template <int M = 1> INLINE void transpose(vf* x) {
    if constexpr (M < L) {
        for (int i = 0; i < L; i++)
            if (!(i & M)) {
                vf a = x[i], b = x[i + M];
                x[i] = low<M>(a, b, Lanes{});
                x[i + M] = high<M>(a, b, Lanes{});
            }
        transpose<2 * M>(x);
    }
}
template <int M = 1> INLINE vf sums(vf* x) {  // lane j: the sum of the lanes of x[j]
    if constexpr (M < L) {
        for (int i = 0; i < L; i += 2 * M)
            x[i] = low<M>(x[i], x[i + M], Lanes{}) + high<M>(x[i], x[i + M], Lanes{});
        return sums<2 * M>(x);
    }
    return x[0];
}
INLINE float sum(vf x) {
    float total = 0.0f;
    for (int i = 0; i < L; i++) total += x[i];
    return total;
}
INLINE vf inverse_root(vf x) {
    vf r;
    for (int i = 0; i < L; i++) r[i] = 1.0f / __builtin_sqrtf(x[i]);
    return r;
}
INLINE vf exponential(vf x) {  // of at most 88; NaN stays NaN; relative error about 1e-7
    vf y = x < -87.0f ? all(-87.0f) : x;
    vf n = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
    vf f = y - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    vf p = all(1.9875691500e-4f);
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    vi e = __builtin_convertvector(n == n ? n : vf{}, vi);
    p = p * (vf)((e + 127) << 23);
    return x < -87.0f ? vf{} : p;
}

// Tokens (at most L of them) of `count` numbers to vectors: number c of each token to to(c), for
// all c below `wanted`. What is past the end is 0.
template <class T, class F>
void columns(const T* x, int64_t stride, int64_t tokens, int64_t count, int64_t wanted, float scale,
             F to) {
    for (int64_t c0 = 0; c0 < wanted; c0 += L) {
        vf r[L];
        for (int i = 0; i < L; i++)
            r[i] = i < tokens ? read(x + i * stride + c0, count - c0) * scale : vf{};
        transpose(r);
        for (int i = 0; i < L; i++)
            if (c0 + i < wanted) st(to(c0 + i), r[i]);
    }
}
// The reverse: vectors at from(c) to tokens.
template <class T, class F>
void tokens(F from, float scale, int64_t count, int64_t tokens, T* x, int64_t stride, bool add) {
    for (int64_t c0 = 0; c0 < count; c0 += L) {
        vf r[L];
        for (int i = 0; i < L; i++) r[i] = c0 + i < count ? ld(from(c0 + i)) : vf{};
        transpose(r);
        for (int i = 0; i < L && i < tokens; i++) {
            T* p = x + i * stride + c0;
            vf before = add ? read(p, count - c0) : vf{};
            write(p, before + r[i] * scale, count - c0);
        }
    }
}

struct Free { void operator()(float* p) const { free(p); } };
using Memory = std::unique_ptr<float, Free>;
Memory memory(int64_t count) {
    return Memory((float*)aligned_alloc(64, (count * sizeof(float) / 64 + 1) * 64));
}
int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

// What all threads share.
struct Problem : Call {
    int64_t C, E, Cp, Ep, Qp, Kp;  // numbers of a token; numbers, queries and keys in whole vectors
    int64_t W, tiles, parts;       // vectors of a tile, tiles of a sequence, parts that share them
    bool crossed;
    int64_t head_step, block_step, set_step;  // of biases: sets of vectors by head and by KB keys
    Memory biases, multipliers;
    std::unique_ptr<bool[]> holes;  // whether a set has biases of -inf

    Problem(const Call& call, bool backward) : Call(call) {
        C = H * D, E = H * V;
        Cp = whole(C, L), Ep = whole(E, L), Qp = whole(Q, L), Kp = whole(K, KB);
        crossed = normaliser == RMS || network != LINEAR;
        head_step = crossed ? KB * Qp : Kp * Qp;
        block_step = crossed ? H * KB * Qp : KB * Qp;
        set_step = H * Kp * Qp;
        int64_t vectors = Qp / L, groups = whole(vectors, MOST_VECTORS) / MOST_VECTORS;
        W = backward ? whole(vectors, groups) / groups : 1;
        tiles = whole(vectors, W) / W;
        // Sums of gradients must not depend on the number of threads.
        parts = std::min(tiles, whole(64, N) / N);
    }
    float* at(float* set, int64_t h, int64_t k) const {
        return set + h * head_step + k / KB * block_step + k % KB * Qp;
    }
    template <class F> int parallel(int64_t n, F f) const {
        int count = (int)std::max<int64_t>(1, std::min(threads, n)), failed = 0;
#pragma omp parallel num_threads(count) reduction(| : failed)
        {
            int64_t id = omp_get_thread_num(), all = omp_get_num_threads();
            failed |= !f(id, n * id / all, n * (id + 1) / all);
        }
        return failed;
    }
    int transpose_pairs() {
        if (bias) {
            biases = memory(bias_sets * set_step);
            holes.reset(new (std::nothrow) bool[bias_sets * H]);
            if (!biases || !holes) return 1;
        }
        if (factors && !(multipliers = memory(factor_sets * Kp * Qp))) return 1;
        auto run = [&](const float* from, auto to) {
            for (int64_t q0 = 0; q0 < Q; q0 += L)
                columns(from + q0 * K, K, Q - q0, K, Kp, 1.0f,
                        [&](int64_t k) { return to(k) + q0; });
        };
        parallel((bias ? bias_sets * H : 0) + (factors ? factor_sets : 0),
                 [&](int64_t, int64_t first, int64_t last) {
            for (int64_t i = first; i < last; i++) {
                if (int64_t m = i - (bias ? bias_sets * H : 0); m >= 0) {
                    float* set = multipliers.get() + m * Kp * Qp;
                    run(factors + m * Q * K, [&](int64_t k) { return set + k * Qp; });
                    continue;
                }
                const float* from = bias + i * Q * K;
                float* set = biases.get() + i / H * set_step;
                run(from, [&](int64_t k) { return at(set, i % H, k); });
                int lowest = 0;
                for (int64_t j = 0; j < Q * K; j++) lowest |= from[j] == -INFINITY;
                holes[i] = lowest;
            }
            return true;
        });
        if (bias)
            for (int64_t m = 0; m < bias_sets; m++)
                for (int64_t h = 0; h < H; h++) holes[m * H] = holes[m * H] | holes[m * H + h];
        return 0;
    }
};

struct Scratch {  // gives parts of one piece of memory; without it, only counts
    float* base = nullptr;
    int64_t used = 0;
    float* take(int64_t count) {
        float* p = base ? base + used : nullptr;
        used += whole(count, 16);
        return p;
    }
};

// A thread's sums over the sequences of a set. A thread may begin in a set of the thread before: it
// keeps sums of its first set and of its last; the sets between are its own and go to `finish`.
struct Sums {
    int64_t size, share, begun;  // share: items of a set; begun: the thread's first item
    int64_t sets[2] = {-1, -1};
    Memory memories[2];
    float* take(int64_t item, int64_t count, int64_t items, int64_t first) {
        size = count, share = items, begun = first;
        int64_t set = item / share;
        int slot = sets[0] < 0 || sets[0] == set ? 0 : 1;
        if (!memories[slot] && !(memories[slot] = memory(size))) return nullptr;
        if (sets[slot] != set) std::fill_n(memories[slot].get(), size, 0.0f);
        sets[slot] = set;
        return memories[slot].get();
    }
    bool leaves(int64_t item) const { return sets[1] >= 0 && sets[1] != item / share; }
    bool adds(int slot) const { return sets[slot] * share < begun; }
};

#define CHUNKS(count, c0, call)                          \
    for (int64_t c0 = 0, end = (count); c0 < end;) {     \
        if (DT != 2 && c0 + 4 <= end) {                  \
            constexpr int N = 4; call; c0 += 4;          \
        } else if (c0 + 2 <= end) {                      \
            constexpr int N = 2; call; c0 += 2;          \
        } else {                                         \
            constexpr int N = 1; call; c0 += 1;          \
        }                                                \
    }

// What a thread has, and how it computes. DT: the head sizes D = V, or 0 for any.
struct Work {
    const Problem& p;
    Memory own;
    int64_t n = 0, keys = 0;                                  // the sequence, its keys
    const float *bias = nullptr, *factor = nullptr, *deep = nullptr;  // of its sets
    float *dbias = nullptr, *ddeep = nullptr;
    bool holes = false;
    // [vector][component][lane]: Q, G, DQ, O; rows [key][head][component]: K, V, DK, DV. Of each
    // pair (`wide` lanes): S, A = dcode, Z = dz rf, R = rf and what RMSHead subtracts. Of each query
    // and head: highest score, inverse of the sum of exponentials, mean gradient of the code.
    float *Q, *G, *DQ, *O, *K, *V, *DK, *DV, *S, *A, *Z, *R, *most, *inverse, *mean;
    int64_t wide;

    Work(const Problem& problem, bool backward) : p(problem), wide(problem.W * L) {
        Scratch scratch;
        for (int pass = 0; pass < 2; pass++) {
            Q = scratch.take(wide * p.Cp);
            K = scratch.take(p.Kp * p.C);
            V = scratch.take(p.Kp * p.E);
            int64_t pairs = p.crossed ? p.H * KB : p.Kp;
            if (p.normaliser == SOFTMAX) pairs = std::max(pairs, p.Kp);
            S = scratch.take(pairs * wide);
            most = scratch.take(p.H * wide);
            inverse = scratch.take(p.H * wide);
            O = scratch.take(p.Ep * L);
            if (backward) {
                G = scratch.take(wide * p.Ep);
                DQ = scratch.take(wide * p.Cp);
                A = scratch.take(pairs * wide);
                Z = scratch.take(p.V * KB * wide);
                R = scratch.take(2 * KB * wide);
                mean = scratch.take(p.H * wide);
                if (p.parts == 1) DK = scratch.take(p.Kp * p.C), DV = scratch.take(p.Kp * p.E);
            }
            if (pass == 0) {
                own = memory(scratch.used);
                scratch = Scratch{own.get()};
                if (!own) return;
            }
        }
    }

    template <class F> void typed(F f) const {  // with a number of the type of the tensors
        if (p.type == 0) f(float{});
        else if (p.type == 1) f(bf16{});
        else f(_Float16{});
    }
    template <class T>
    void rows(const void* from, int64_t sequence, int64_t token, int64_t count, bool relu, float* to) {
        const T* x = (const T*)from + n * sequence;
        for (int64_t t = 0; t < keys; t++)
            for (int64_t c = 0; c < count; c += L) {
                vf y = read(x + t * token + c, count - c);
                write(to + t * count + c, relu ? positive(y) : y, count - c);
            }
        std::fill(to + keys * count, to + whole(keys, KB) * count, 0.0f);
    }
    void begin(int64_t sequence) {
        n = sequence;
        keys = p.lengths ? std::max<int64_t>(0, std::min<int64_t>(p.K, p.lengths[n])) : p.K;
        if (p.bias) {
            int64_t set = n / (p.N / p.bias_sets);
            bias = p.biases.get() + set * p.set_step;
            holes = p.holes[set * p.H];
        }
        if (p.factors) factor = p.multipliers.get() + n / (p.N / p.factor_sets) * p.Kp * p.Qp;
        if (p.deep) deep = p.deep + n / (p.N / p.deep_sets) * p.E * p.V;
        typed([&](auto t) {
            using T = decltype(t);
            rows<T>(p.k, p.k_sequence, p.k_token, p.C, false, K);
            rows<T>(p.v, p.v_sequence, p.v_token, p.E, p.relu && p.network == LINEAR, V);
        });
    }
    // Keys that queries before `end` may see, in whole blocks.
    int64_t seen(int64_t end) const {
        return whole(p.causal ? std::min(keys, end + p.K - p.Q) : keys, KB);
    }
    // Whether some pair of queries from q0 and KB keys from k0 may be masked.
    bool cut(int64_t q0, int64_t k0) const {
        return holes || k0 + KB > keys || (p.causal && k0 + KB - 1 > q0 + p.K - p.Q);
    }
    // The bias; with `masks`, -inf if a pair is masked.
    INLINE vf start(int64_t h, int64_t k0, int j, int64_t q0, bool masks) const {
        vf b = vf{};
        if (bias) b = ld(bias + h * p.head_step + k0 / KB * p.block_step + j * p.Qp + q0);
        if (masks) {
            vi lane;
            for (int i = 0; i < L; i++) lane[i] = i;
            if (k0 + j >= keys) b = all(-INFINITY);
            else if (p.causal)
                b = lane + (int)(q0 + p.K - p.Q) >= (int)(k0 + j) ? b : all(-INFINITY);
        }
        return b;
    }
    INLINE vf factor_of(int64_t k, int64_t q0) const {
        return factor ? ld(factor + k * p.Qp + q0) : all(1.0f);
    }
    // Scores of the queries at Qv, from q0, with KB keys; `hidden` where masked.
    template <int DT>
    INLINE void scores(const float* Qv, int64_t q0, int64_t k0, int64_t h, float hidden, vf* acc) const {
        const int64_t D = DT ? DT : p.D;
        const bool masks = cut(q0, k0);
        for (int j = 0; j < KB; j++) acc[j] = start(h, k0, j, q0, masks);
        const float *q = Qv + h * D * L, *k = K + k0 * p.C + h * D;
#pragma GCC unroll 4
        for (int64_t d = 0; d < D; d++) {
            vf x = ld(q + d * L);
            for (int j = 0; j < KB; j++) acc[j] += x * k[j * p.C + d];
        }
        if (masks)
            for (int j = 0; j < KB; j++)
                acc[j] = start(h, k0, j, q0, true) == -INFINITY ? all(hidden) : acc[j];
    }
    // Scores with all keys to S, in steps of `wide`; of a softmax returns the highest.
    template <int DT, int NORM>
    INLINE vf head_scores(const float* Qv, int64_t q0, int64_t h, int64_t limit, float* to) const {
        vf highest = all(-INFINITY);
        for (int64_t k0 = 0; k0 < limit; k0 += KB) {
            vf acc[KB];
            scores<DT>(Qv, q0, k0, h, NORM == SOFTMAX ? -INFINITY : 0.0f, acc);
            for (int j = 0; j < KB; j++) {
                st(to + (k0 + j) * wide, acc[j]);
                if (NORM == SOFTMAX) highest = acc[j] > highest ? acc[j] : highest;
            }
        }
        return highest == -INFINITY ? vf{} : highest;
    }
    static INLINE vf inverted(vf total) { return total == 0.0f ? vf{} : 1.0f / total; }

    // Without RMSHead and with a linear value network: one head at a time.
    template <int DT, int N>
    INLINE void separate_values(int64_t h, int64_t v0, int64_t limit, vf scale) {
        const float* v = V + h * (DT ? DT : p.V) + v0;
        vf acc[N];
        for (int d = 0; d < N; d++) acc[d] = vf{};
        for (int64_t k = 0; k < limit; k++) {
            vf x = ld(S + k * wide);
            for (int d = 0; d < N; d++) acc[d] += x * v[k * p.E + d];
        }
        for (int d = 0; d < N; d++) st(O + (h * (DT ? DT : p.V) + v0 + d) * L, acc[d] * scale);
    }
    template <int DT, int NORM> void separate_forward(int64_t q0) {
        const int64_t limit = seen(q0 + L);
        for (int64_t h = 0; h < p.H; h++) {
            vf highest = head_scores<DT, NORM>(Q, q0, h, limit, S), scale = all(1.0f);
            if (NORM == SOFTMAX) {
                vf total = vf{};
                for (int64_t k = 0; k < limit; k++) {
                    vf e = exponential(ld(S + k * wide) - highest);
                    total += e;
                    st(S + k * wide, e);
                }
                scale = inverted(total);
            }
            if (factor)
                for (int64_t k = 0; k < limit; k++)
                    st(S + k * wide, ld(S + k * wide) * factor_of(k, q0));
            CHUNKS(DT ? DT : p.V, v0, (separate_values<DT, N>(h, v0, limit, scale)))
        }
    }

    // Codes of KB keys and all heads to S; `r` of RMSHead and `rf`.
    template <int DT, int NORM>
    INLINE void codes(const float* Qv, int64_t q0, int64_t lane, int64_t k0, float* to, vf* r, vf* rf) const {
        vf squares[KB];
        for (int j = 0; j < KB; j++) squares[j] = vf{};
        for (int64_t h = 0; h < p.H; h++) {
            vf acc[KB];
            scores<DT>(Qv, q0, k0, h, NORM == SOFTMAX ? -INFINITY : 0.0f, acc);
            for (int j = 0; j < KB; j++) {
                if (NORM == RMS) squares[j] += acc[j] * acc[j];
                if (NORM == SOFTMAX)
                    acc[j] = exponential(acc[j] - ld(most + h * wide + lane)) * ld(inverse + h * wide + lane);
                st(to + (h * KB + j) * wide, acc[j]);
            }
        }
        for (int j = 0; j < KB; j++) {
            r[j] = NORM == RMS ? inverse_root(squares[j] * (1.0f / p.H) + (float)p.eps) : all(1.0f);
            rf[j] = factor ? r[j] * factor_of(k0 + j, q0) : r[j];
        }
    }
    // Highest score and sum of exponentials, of each head.
    template <int DT> void softmax_sums(const float* Qv, int64_t q0, int64_t lane, int64_t limit) {
        for (int64_t h = 0; h < p.H; h++) {
            vf highest = head_scores<DT, SOFTMAX>(Qv, q0, h, limit, S), total = vf{};
            for (int64_t k = 0; k < limit; k++) total += exponential(ld(S + k * wide) - highest);
            st(most + h * wide + lane, highest);
            st(inverse + h * wide + lane, inverted(total));
        }
    }
    // z, the input of phi: sums over heads of codes times values, for N components of KB keys.
    template <int DT, int N>
    INLINE void hidden_layer(const float* codes, int64_t k0, int64_t v0, const vf* rf, vf (*z)[N]) const {
        const int64_t size = DT ? DT : p.V;
        for (int j = 0; j < KB; j++)
            for (int d = 0; d < N; d++) z[j][d] = vf{};
        for (int64_t h = 0; h < p.H; h++) {
            const float* v = V + k0 * p.E + h * size + v0;
            for (int j = 0; j < KB; j++) {
                vf x = ld(codes + (h * KB + j) * wide);
                for (int d = 0; d < N; d++) z[j][d] += x * v[j * p.E + d];
            }
        }
        for (int j = 0; j < KB; j++)
            for (int d = 0; d < N; d++) z[j][d] *= rf[j];
    }
    template <int DT, int N> INLINE void mlp_forward(int64_t k0, int64_t v0, const vf* rf) {
        const int64_t size = DT ? DT : p.V;
        vf z[KB][N];
        hidden_layer<DT, N>(S, k0, v0, rf, z);
        for (int j = 0; j < KB; j++)
            for (int d = 0; d < N; d++) z[j][d] = (p.relu ? positive(z[j][d]) : z[j][d]) * rf[j];
        for (int64_t h = 0; h < p.H; h++) {
            float* o = O + (h * size + v0) * L;
            vf acc[N];
            for (int d = 0; d < N; d++) acc[d] = ld(o + d * L);
            for (int j = 0; j < KB; j++) {
                vf x = ld(S + (h * KB + j) * wide);
                for (int d = 0; d < N; d++) acc[d] += x * z[j][d];
            }
            for (int d = 0; d < N; d++) st(o + d * L, acc[d]);
        }
    }
    template <int DT, int N> INLINE void linear_forward(int64_t k0, int64_t h, int64_t v0, const vf* rf) {
        float* o = O + (h * (DT ? DT : p.V) + v0) * L;
        const float* v = V + k0 * p.E + h * (DT ? DT : p.V) + v0;
        vf acc[N];
        for (int d = 0; d < N; d++) acc[d] = ld(o + d * L);
        for (int j = 0; j < KB; j++) {
            vf x = ld(S + (h * KB + j) * wide) * rf[j];
            for (int d = 0; d < N; d++) acc[d] += x * v[j * p.E + d];
        }
        for (int d = 0; d < N; d++) st(o + d * L, acc[d]);
    }
    // Both hidden layers of key j: phi(z) and phi(y).
    void deep_layers(const float* codes, int64_t k, vf rf, vf* z, vf* y) const {
        for (int64_t i = 0; i < p.V; i++) z[i] = y[i] = vf{};
        for (int64_t h = 0; h < p.H; h++) {
            vf a = ld(codes + h * KB * wide) * rf;
            for (int64_t i = 0; i < p.V; i++) z[i] += a * V[k * p.E + h * p.V + i];
        }
        if (p.relu)
            for (int64_t i = 0; i < p.V; i++) z[i] = positive(z[i]);
        for (int64_t h = 0; h < p.H; h++) {
            vf a = ld(codes + h * KB * wide) * rf;
            for (int64_t u = 0; u < p.V; u++) y[u] += a * deep_row(h, u, z);
        }
        if (p.relu)
            for (int64_t i = 0; i < p.V; i++) y[i] = positive(y[i]);
    }
    INLINE vf deep_row(int64_t h, int64_t u, const vf* z) const {
        const float* w = deep + (h * p.V + u) * p.V;
        vf t = vf{};
        for (int64_t i = 0; i < p.V; i++) t += z[i] * w[i];
        return t;
    }
    void deep_forward(int64_t k0, const vf* rf) {
        vf z[MOST_DEEP], y[MOST_DEEP];
        for (int j = 0; j < KB; j++) {
            deep_layers(S + j * wide, k0 + j, rf[j], z, y);
            for (int64_t h = 0; h < p.H; h++) {
                vf a = ld(S + (h * KB + j) * wide) * rf[j];
                float* o = O + h * p.V * L;
                for (int64_t u = 0; u < p.V; u++) st(o + u * L, ld(o + u * L) + a * y[u]);
            }
        }
    }
    template <int DT, int NORM> void crossed_forward(int64_t q0) {
        const int64_t limit = seen(q0 + L);
        std::fill_n(O, p.Ep * L, 0.0f);
        if (NORM == SOFTMAX) softmax_sums<DT>(Q, q0, 0, limit);
        for (int64_t k0 = 0; k0 < limit; k0 += KB) {
            vf r[KB], rf[KB];
            codes<DT, NORM>(Q, q0, 0, k0, S, r, rf);
            if (p.network == DEEP) deep_forward(k0, rf);
            else if (p.network == MLP) {
                CHUNKS(DT ? DT : p.V, v0, (mlp_forward<DT, N>(k0, v0, rf)))
            } else
                for (int64_t h = 0; h < p.H; h++)
                    CHUNKS(DT ? DT : p.V, v0, (linear_forward<DT, N>(k0, h, v0, rf)))
        }
    }
    // Queries of the sequence to vectors, and vectors to results.
    void load(const void* x, int64_t sequence, int64_t token, int64_t q0, int64_t count, int64_t vectors, double scale, float* to) const {
        typed([&](auto t) {
            columns((const decltype(t)*)x + n * sequence + q0 * token, token, p.Q - q0, count, vectors, (float)scale,
                    [&](int64_t c) { return to + c * L; });
        });
    }
    void store(const float* from, int64_t q0, int64_t count, double scale, void* to) const {
        typed([&](auto t) {
            tokens([&](int64_t c) { return from + c * L; }, (float)scale, count, p.Q - q0,
                   (decltype(t)*)to + (n * p.Q + q0) * count, count, false);
        });
    }
    template <int DT, int NORM> void forward(int64_t first, int64_t last) {
        for (int64_t q0 = first * L; q0 < last * L; q0 += L) {
            load(p.q, p.q_sequence, p.q_token, q0, p.C, p.Cp, p.scale, Q);
            if (p.crossed) crossed_forward<DT, NORM>(q0);
            else if constexpr (NORM != RMS) separate_forward<DT, NORM>(q0);
            store(O, q0, p.E, 1.0, p.out);
        }
    }

    // Gradients of codes to A, for the queries at `lane` of the tile and KB keys; Z besides. Returns
    // to `along` the sums over heads of code and gradient.
    template <int DT, int N>
    INLINE void mlp_backward(const float* Gv, int64_t lane, int64_t k0, int64_t v0, const vf* rf, vf* along) {
        const int64_t size = DT ? DT : p.V;
        vf z[KB][N], u[KB][N];
        hidden_layer<DT, N>(S + lane, k0, v0, rf, z);
        for (int j = 0; j < KB; j++)
            for (int d = 0; d < N; d++) u[j][d] = vf{};
        for (int64_t h = 0; h < p.H; h++) {
            vf g[N];
            for (int d = 0; d < N; d++) g[d] = ld(Gv + (h * size + v0 + d) * L);
            for (int j = 0; j < KB; j++) {
                vf x = ld(S + (h * KB + j) * wide + lane);
                for (int d = 0; d < N; d++) u[j][d] += x * g[d];
            }
        }
        for (int j = 0; j < KB; j++)
            for (int d = 0; d < N; d++) {
                u[j][d] *= rf[j];
                if (p.relu) {
                    u[j][d] = z[j][d] <= 0.0f ? vf{} : u[j][d];
                    z[j][d] = positive(z[j][d]);
                }
                st(Z + ((v0 + d) * KB + j) * wide + lane, u[j][d] * rf[j]);
            }
        constexpr int P = KB < 2 ? KB : 2;
        for (int j0 = 0; j0 < KB; j0 += P)
            for (int64_t h = 0; h < p.H; h++) {
                const float* v = V + k0 * p.E + h * size + v0;
                vf acc[P];
                for (int j = 0; j < P; j++) acc[j] = v0 ? ld(A + (h * KB + j0 + j) * wide + lane) : vf{};
                for (int d = 0; d < N; d++) {
                    vf g = ld(Gv + (h * size + v0 + d) * L);
                    for (int j = 0; j < P; j++)
                        acc[j] += g * z[j0 + j][d] + u[j0 + j][d] * v[(j0 + j) * p.E + d];
                }
                for (int j = 0; j < P; j++) {
                    st(A + (h * KB + j0 + j) * wide + lane, acc[j]);
                    if (v0 + N == size) along[j0 + j] += acc[j] * ld(S + (h * KB + j0 + j) * wide + lane);
                }
            }
    }
    // Products of the gradient of the output with values, one head.
    template <int DT>
    INLINE void value_products(const float* Gv, int64_t k0, int64_t h, vf* acc) const {
        const int64_t size = DT ? DT : p.V;
        for (int j = 0; j < KB; j++) acc[j] = vf{};
#pragma GCC unroll 4
        for (int64_t d = 0; d < size; d++) {
            vf x = ld(Gv + (h * size + d) * L);
            for (int j = 0; j < KB; j++) acc[j] += x * V[(k0 + j) * p.E + h * size + d];
        }
    }
    void deep_backward(const float* Gv, int64_t lane, int64_t k0, const vf* rf, vf* along, float* dw) {
        vf z[MOST_DEEP], y[MOST_DEEP], dz[MOST_DEEP], dy[MOST_DEEP];
        for (int j = 0; j < KB; j++) {
            const float* s = S + j * wide + lane;
            float* da = A + j * wide + lane;
            deep_layers(s, k0 + j, rf[j], z, y);
            for (int64_t i = 0; i < p.V; i++) dz[i] = dy[i] = vf{};
            for (int64_t h = 0; h < p.H; h++)
                for (int64_t u = 0; u < p.V; u++)
                    dy[u] += ld(s + h * KB * wide) * rf[j] * ld(Gv + (h * p.V + u) * L);
            if (p.relu)
                for (int64_t u = 0; u < p.V; u++) dy[u] = y[u] <= 0.0f ? vf{} : dy[u];
            for (int64_t h = 0; h < p.H; h++) {
                const vf a = ld(s + h * KB * wide) * rf[j];
                vf sum = vf{}, t[MOST_DEEP];
                for (int64_t i = 0; i < p.V; i++) t[i] = vf{};
                for (int64_t u = 0; u < p.V; u++) {
                    const float* w = deep + (h * p.V + u) * p.V;
                    sum += ld(Gv + (h * p.V + u) * L) * y[u] + dy[u] * deep_row(h, u, z);
                    for (int64_t i = 0; i < p.V; i++) t[i] += dy[u] * w[i];
                    if (dw)
                        for (int64_t i = 0; i < p.V; i++) {
                            float* to = dw + ((h * p.V + u) * p.V + i) * L;
                            st(to, ld(to) + a * dy[u] * z[i]);
                        }
                }
                for (int64_t i = 0; i < p.V; i++) dz[i] += a * t[i];
                st(da + h * KB * wide, sum);
            }
            for (int64_t i = 0; i < p.V; i++) {
                if (p.relu) dz[i] = z[i] <= 0.0f ? vf{} : dz[i];
                st(Z + (i * KB + j) * wide + lane, dz[i] * rf[j]);
            }
            for (int64_t h = 0; h < p.H; h++) {
                vf sum = ld(da + h * KB * wide);
                for (int64_t i = 0; i < p.V; i++) sum += dz[i] * V[(k0 + j) * p.E + h * p.V + i];
                st(da + h * KB * wide, sum);
                along[j] += sum * ld(s + h * KB * wide);
            }
        }
    }
    template <int DT, int NORM>
    INLINE void code_gradients(int64_t q0, int64_t lane, int64_t k0, float* dw, vf* r, vf* rf, vf* along) {
        const float *Qv = Q + lane * p.Cp, *Gv = G + lane * p.Ep;
        for (int j = 0; j < KB; j++) along[j] = vf{};
        codes<DT, NORM>(Qv, q0 + lane, lane, k0, S + lane, r, rf);
        if (p.network == DEEP) deep_backward(Gv, lane, k0, rf, along, dw);
        else if (p.network == MLP) {
            CHUNKS(DT ? DT : p.V, v0, (mlp_backward<DT, N>(Gv, lane, k0, v0, rf, along)))
        } else
            for (int64_t h = 0; h < p.H; h++) {
                vf acc[KB];
                value_products<DT>(Gv, k0, h, acc);
                for (int j = 0; j < KB; j++) {
                    st(A + (h * KB + j) * wide + lane, acc[j]);
                    along[j] += acc[j] * ld(S + (h * KB + j) * wide + lane);
                }
            }
    }
    // The gradient of scores from A (left there) and, of a linear value network, the whole code to
    // S. s, da: of this head and KB keys.
    template <int NORM>
    INLINE void score_gradients(int64_t q0, int64_t lane, int64_t k0, int64_t h, float* s, float* da, vf* ds) {
        const bool masks = cut(q0, k0), linear = p.network == LINEAR;
        for (int j = 0; j < KB; j++) {
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
            if (masks)
                ds[j] = start(h, k0, j, q0 + lane, true) == -INFINITY ? vf{} : ds[j];
            st(da + j * wide + lane, ds[j]);
            if (dbias) {
                float* b = dbias + h * p.head_step + k0 / KB * p.block_step + j * p.Qp + q0 + lane;
                st(b, ld(b) + ds[j]);
            }
        }
    }
    INLINE void add_rows(vf sum, int count, int64_t step, float* to) const {
        float x[L];
        write(x, sum);
        for (int j = 0; j < KB; j++)
            for (int d = 0; d < count; d++) to[j * step + d] += x[j * DC + d];
    }
    template <int DT, int NORM, int N>
    INLINE void key_gradients(int64_t q0, int64_t width, int64_t k0, int64_t h, int64_t d0, float* s, float* da) {
        const int64_t size = DT ? DT : p.D, at = k0 * p.C + h * size + d0;
        const float* k = K + at;
        vf dk[L];
        for (int i = 0; i < L; i++) dk[i] = vf{};
        for (int64_t lane = 0; lane < width; lane += L) {
            const int64_t column = lane * p.Cp + (h * size + d0) * L;
            vf ds[KB];
            if (d0 == 0) score_gradients<NORM>(q0, lane, k0, h, s, da, ds);
            else
                for (int j = 0; j < KB; j++) ds[j] = ld(da + j * wide + lane);
            for (int d = 0; d < N; d++) {
                vf x = ld(Q + column + d * L), y = ld(DQ + column + d * L);
                for (int j = 0; j < KB; j++) {
                    dk[j * DC + d] += ds[j] * x;
                    y += ds[j] * k[j * p.C + d];
                }
                st(DQ + column + d * L, y);
            }
        }
        add_rows(sums(dk), N, p.C, DK + at);
    }
    template <int DT, int N, bool HIDDEN>
    INLINE void value_gradients(int64_t width, int64_t k0, int64_t h, int64_t v0, const float* s) {
        const int64_t size = DT ? DT : p.V;
        vf dv[L];
        for (int i = 0; i < L; i++) dv[i] = vf{};
        for (int64_t lane = 0; lane < width; lane += L) {
            vf a[KB];
            for (int j = 0; j < KB; j++) a[j] = ld(s + j * wide + lane);
            for (int d = 0; d < N; d++)
                if (HIDDEN) {
                    const float* z = Z + (v0 + d) * KB * wide + lane;
                    for (int j = 0; j < KB; j++) dv[j * DC + d] += a[j] * ld(z + j * wide);
                } else {
                    vf g = ld(G + lane * p.Ep + (h * size + v0 + d) * L);
                    for (int j = 0; j < KB; j++) dv[j * DC + d] += a[j] * g;
                }
        }
        add_rows(sums(dv), N, p.E, DV + k0 * p.E + h * size + v0);
    }
    // Gradients of keys, values and queries from those of codes, of one head.
    template <int DT, int NORM, bool HIDDEN>
    INLINE void head_gradients(int64_t q0, int64_t width, int64_t k0, int64_t h, float* s, float* da) {
        CHUNKS(DT ? DT : p.D, d0, (key_gradients<DT, NORM, N>(q0, width, k0, h, d0, s, da)))
        CHUNKS(DT ? DT : p.V, v0, (value_gradients<DT, N, HIDDEN>(width, k0, h, v0, s)))
    }
    template <int DT, int NORM> void separate_backward(int64_t q0, int64_t width, int64_t limit) {
        for (int64_t h = 0; h < p.H; h++) {
            for (int64_t lane = 0; lane < width; lane += L) {
                vf highest = head_scores<DT, NORM>(Q + lane * p.Cp, q0 + lane, h, limit, S + lane);
                for (int64_t k0 = 0; k0 < limit; k0 += KB) {
                    vf acc[KB];
                    value_products<DT>(G + lane * p.Ep, k0, h, acc);
                    for (int j = 0; j < KB; j++) st(A + (k0 + j) * wide + lane, acc[j]);
                }
                if (NORM == SOFTMAX) {
                    vf total = vf{}, sum = vf{};
                    for (int64_t k = 0; k < limit; k++) {
                        vf e = exponential(ld(S + k * wide + lane) - highest);
                        vf da = ld(A + k * wide + lane);
                        total += e;
                        sum += e * (factor ? da * factor_of(k, q0 + lane) : da);
                        st(S + k * wide + lane, e);
                    }
                    st(inverse + h * wide + lane, inverted(total));
                    st(mean + h * wide + lane, sum * inverted(total));
                }
            }
            for (int64_t k0 = 0; k0 < limit; k0 += KB)
                head_gradients<DT, NORM, false>(q0, width, k0, h, S + k0 * wide, A + k0 * wide);
        }
    }
    template <int DT, int NORM> void crossed_backward(int64_t q0, int64_t width, int64_t limit) {
        vf r[KB], rf[KB], along[KB];
        if (NORM == SOFTMAX) {
            // A mean over all keys, which a first pass over them has to find.
            std::fill_n(mean, p.H * wide, 0.0f);
            for (int64_t lane = 0; lane < width; lane += L) {
                softmax_sums<DT>(Q + lane * p.Cp, q0 + lane, lane, limit);
                for (int64_t k0 = 0; k0 < limit; k0 += KB) {
                    code_gradients<DT, NORM>(q0, lane, k0, nullptr, r, rf, along);
                    for (int64_t i = 0; i < p.H * KB; i++) {
                        float* to = mean + i / KB * wide + lane;
                        vf x = ld(S + i * wide + lane) * ld(A + i * wide + lane);
                        st(to, ld(to) + x * rf[i % KB]);
                    }
                }
            }
        }
        for (int64_t k0 = 0; k0 < limit; k0 += KB) {
            for (int64_t lane = 0; lane < width; lane += L) {
                code_gradients<DT, NORM>(q0, lane, k0, ddeep, r, rf, along);
                if (NORM == RMS)
                    for (int j = 0; j < KB; j++) {
                        st(R + j * wide + lane, rf[j]);
                        st(R + (KB + j) * wide + lane, r[j] * r[j] * rf[j] * along[j] * (1.0f / p.H));
                    }
            }
            for (int64_t h = 0; h < p.H; h++) {
                float *s = S + h * KB * wide, *da = A + h * KB * wide;
                if (p.network == LINEAR) head_gradients<DT, NORM, false>(q0, width, k0, h, s, da);
                else head_gradients<DT, NORM, true>(q0, width, k0, h, s, da);
            }
        }
    }
    template <int DT, int NORM> void backward(int64_t first, int64_t last) {
        std::fill_n(DK, p.Kp * p.C, 0.0f);
        std::fill_n(DV, p.Kp * p.E, 0.0f);
        for (int64_t tile = first; tile < last; tile++) {
            const int64_t q0 = tile * wide, width = std::min(wide, p.Qp - q0);
            for (int64_t lane = 0; lane < width; lane += L) {
                load(p.q, p.q_sequence, p.q_token, q0 + lane, p.C, p.Cp, p.scale, Q + lane * p.Cp);
                load(p.grad, p.Q * p.E, p.E, q0 + lane, p.E, p.Ep, 1.0, G + lane * p.Ep);
            }
            std::fill_n(DQ, width * p.Cp, 0.0f);
            const int64_t limit = seen(q0 + width);
            if (p.crossed) crossed_backward<DT, NORM>(q0, width, limit);
            else if constexpr (NORM != RMS) separate_backward<DT, NORM>(q0, width, limit);
            for (int64_t lane = 0; lane < width; lane += L)
                store(DQ + lane * p.Cp, q0 + lane, p.C, p.scale, p.dq);
        }
    }
    // Writes the gradients of keys and values, from as many parts as there are.
    void finish(int64_t sequence, const float* dk, const float* dv, int64_t step) const {
        auto run = [&](const float* from, int64_t count, auto* to, auto keep) {
            for (int64_t t = 0; t < p.K; t++)
                for (int64_t c = 0; c < count; c += L) {
                    vf x = vf{};
                    for (int64_t part = 0; part < p.parts; part++)
                        x += read(from + part * step + t * count + c, count - c);
                    write(to + (sequence * p.K + t) * count + c, keep(x, t, c), count - c);
                }
        };
        typed([&](auto any) {
            using T = decltype(any);
            run(dk, p.C, (T*)p.dk, [](vf x, int64_t, int64_t) { return x; });
            const T* v = (const T*)p.v + sequence * p.v_sequence;
            run(dv, p.E, (T*)p.dv, [&](vf x, int64_t t, int64_t c) {
                if (!p.relu || p.network != LINEAR) return x;
                return read(v + t * p.v_token + c, p.E - c) <= 0.0f ? vf{} : x;
            });
        });
    }
};

template <class F> int specialised(const Problem& p, F f) {
    auto with_size = [&](auto norm) {
        if (p.D == 4 && p.V == 4) return f(std::integral_constant<int, 4>{}, norm);
        if (p.D == 2 && p.V == 2) return f(std::integral_constant<int, 2>{}, norm);
        return f(std::integral_constant<int, 0>{}, norm);
    };
    if (p.normaliser == NONE) return with_size(std::integral_constant<int, NONE>{});
    if (p.normaliser == RMS) return with_size(std::integral_constant<int, RMS>{});
    return with_size(std::integral_constant<int, SOFTMAX>{});
}
}  // namespace

extern "C" int hyla_attention_forward(const Call* call) {
    Problem p(*call, false);
    if (p.transpose_pairs()) return 1;
    return specialised(p, [&](auto size, auto norm) {
        return p.parallel(p.N * p.parts, [&](int64_t, int64_t first, int64_t last) {
            Work work(p, false);
            if (!work.own) return false;
            for (int64_t item = first; item < last; item++) {
                const int64_t part = item % p.parts;
                work.begin(item / p.parts);
                work.forward<size.value, norm.value>(p.tiles * part / p.parts,
                                                        p.tiles * (part + 1) / p.parts);
            }
            return true;
        });
    });
}

extern "C" int hyla_attention_backward(const Call* call) {
    Problem p(*call, true);
    if (p.transpose_pairs()) return 1;
    const int64_t items = p.N * p.parts, threads = std::max<int64_t>(1, std::min(p.threads, items));
    const int64_t part_size = p.Kp * (p.C + p.E);
    Memory partial;
    if (p.parts > 1 && !(partial = memory(items * part_size))) return 1;
    std::unique_ptr<Sums[]> biases(new (std::nothrow) Sums[threads]);
    std::unique_ptr<Sums[]> deeps(new (std::nothrow) Sums[threads]);
    if (!biases || !deeps) return 1;
    // One head of a bias, in its own order; one head of deep matrices, the sum of lanes.
    auto finish_bias = [&](const Sums& sums, int slot, int64_t h) {
        float* set = sums.memories[slot].get();
        float* to = p.dbias + (sums.sets[slot] * p.H + h) * p.Q * p.K;
        for (int64_t q0 = 0; q0 < p.Q; q0 += L)
            tokens([&](int64_t k) { return p.at(set, h, k) + q0; }, 1.0f, p.K, p.Q - q0,
                   to + q0 * p.K, p.K, sums.adds(slot));
    };
    auto finish_deep = [&](const Sums& sums, int slot, int64_t h) {
        const float* from = sums.memories[slot].get() + h * p.V * p.V * L;
        float* to = p.ddeep + (sums.sets[slot] * p.H + h) * p.V * p.V;
        for (int64_t i = 0; i < p.V * p.V; i++)
            to[i] = (sums.adds(slot) ? to[i] : 0.0f) + sum(ld(from + i * L));
    };
    int failed = specialised(p, [&](auto size, auto norm) {
        return p.parallel(items, [&](int64_t id, int64_t first, int64_t last) {
            Work work(p, true);
            if (!work.own) return false;
            for (int64_t item = first; item < last; item++) {
                const int64_t n = item / p.parts, part = item % p.parts;
                auto take = [&](Sums& sums, int64_t sets, int64_t count, auto finish) {
                    if (sums.leaves(item))
                        for (int64_t h = 0; h < p.H; h++) finish(sums, 1, h);
                    return sums.take(item, count, items / sets, first);
                };
                if (p.dbias && !(work.dbias = take(biases[id], p.bias_sets, p.set_step, finish_bias)))
                    return false;
                if (p.ddeep && !(work.ddeep = take(deeps[id], p.deep_sets, p.E * p.V * L, finish_deep)))
                    return false;
                work.begin(n);
                if (partial) work.DK = partial.get() + item * part_size, work.DV = work.DK + p.Kp * p.C;
                work.backward<size.value, norm.value>(p.tiles * part / p.parts,
                                                         p.tiles * (part + 1) / p.parts);
                if (!partial) work.finish(n, work.DK, work.DV, 0);
            }
            return true;
        });
    });
    if (failed) return 1;
    if (partial) {
        Work work(p, true);
        if (!work.own) return 1;
        p.parallel(p.N, [&](int64_t, int64_t first, int64_t last) {
            for (int64_t n = first; n < last; n++) {
                const float* dk = partial.get() + n * p.parts * part_size;
                work.finish(n, dk, dk + p.Kp * p.C, part_size);
            }
            return true;
        });
    }
    p.parallel(p.H, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t h = first; h < last; h++)
            for (int64_t t = 0; t < threads; t++)
                for (int slot = 0; slot < 2; slot++) {
                    if (p.dbias && biases[t].sets[slot] >= 0) finish_bias(biases[t], slot, h);
                    if (p.ddeep && deeps[t].sets[slot] >= 0) finish_deep(deeps[t], slot, h);
                }
        return true;
    });
    return 0;
}
