// float32 matrix products and one-pass AdamW, for processors on which MKL is slow.
//
// y[N, E] = x[N, K] W[E, K]^T + b with its gradients dx = g W, dW = g^T x, db = sum_n g.
// One matrix is packed into panels of NR columns; a tile of MR x NR sums stays in registers while
// it runs down a panel. Threads split rows, so results do not depend on the number of threads.
// Options: HALF rounds the factors to bfloat16 and packs two of them into one panel element; sums
// and results stay float32. GELU uses gelu(x) (tanh) in place of x, computed a few rows at a time.
//
// Plain C ABI. Functions return 0, or 1 if memory cannot be allocated.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <omp.h>
#include <type_traits>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {
#if defined(__AVX512F__)
constexpr int L = 16, NV = 4;  // floats per vector, vectors per panel row
#elif defined(__AVX__)
constexpr int L = 8, NV = 2;
#else
constexpr int L = 4, NV = 2;
#endif
constexpr int NR = NV * L, MR = 6;
constexpr int HALF = 1, GELU = 2;
constexpr int64_t DEPTH = 128;   // tokens that a weight gradient packs at a time
constexpr int64_t ROWS = 12 * MR;  // rows computed with one panel before the next
constexpr int64_t LARGEST = 1 << 16;  // most weights that fit a core's cache beside the other data
constexpr int64_t PARTS = 16;  // parts of the tokens, hence the most threads used

typedef float vf __attribute__((vector_size(4 * L), may_alias));
typedef float unaligned __attribute__((vector_size(4 * L), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * L), may_alias));
typedef uint32_t vp __attribute__((vector_size(4 * L), may_alias));

// Elements of panels: float, or two bfloat16 that are consecutive along K.
using Pair = uint32_t;
template <class T> constexpr int DEEP = std::is_same<T, Pair>::value ? 2 : 1;
template <class T> struct Vector { typedef vf type; };
template <> struct Vector<Pair> { typedef vp type; };

inline Pair rounded(float x) {  // to the nearest bfloat16, ties to even; NaN stays NaN
    Pair bits;
    memcpy(&bits, &x, 4);
    Pair nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return x == x ? nearest : bits >> 16 | 0x40;
}
template <class T> T joined(float x0, float x1);
template <> inline float joined<float>(float x0, float) { return x0; }
template <> inline Pair joined<Pair>(float x0, float x1) { return rounded(x0) | rounded(x1) << 16; }

inline vf multiplied(vf sum, vf b, float a) { return sum + b * a; }
inline vf multiplied(vf sum, vp b, Pair a) {
#if defined(__AVX512BF16__)
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#else
    Pair low = a << 16, high = a & 0xffff0000u;
    float a0, a1;
    memcpy(&a0, &low, 4), memcpy(&a1, &high, 4);
    return sum + (vf)(b << 16) * a0 + (vf)(b & 0xffff0000u) * a1;
#endif
}

vf sigmoid(vf z) {  // 1 / (1 + exp(-z))
    vf y = z < -87.0f ? vf{} - 87.0f : z > 87.0f ? vf{} + 87.0f : z;
    vf n = (y * -1.44269504f + 12582912.0f) - 12582912.0f;  // exponent of 2, rounded
    vf f = n * 2.12194440e-4f - n * 0.693359375f - y;
    vf p = (1.9875691500e-4f * f + 1.3981999507e-3f) * f + 8.3334519073e-3f;
    p = (((p * f + 4.1665795894e-2f) * f + 1.6666665459e-1f) * f + 0.5f) * f * f + f + 1.0f;
    vi power = __builtin_convertvector(n == n ? n : vf{}, vi) + 127;
    return 1.0f / (1.0f + p * (vf)(power << 23));
}

// gelu(x) = x sigmoid(Z1 x + Z3 x^3), and its derivative.
constexpr float Z1 = 1.5957691216f, Z3 = 0.0713548163f;
vf gelu(vf x) { return x * sigmoid(x * (Z1 + Z3 * x * x)); }
vf gelu_slope(vf x) {
    vf s = sigmoid(x * (Z1 + Z3 * x * x));
    return s + x * s * (1.0f - s) * (Z1 + 3.0f * Z3 * x * x);
}

// to[i] = f(x[i], to[i])
template <class F> void each(int64_t n, const float* x, float* to, F f) {
    for (int64_t i = 0; i + L <= n; i += L)
        *(unaligned*)(to + i) = f(*(const unaligned*)(x + i), *(unaligned*)(to + i));
    if (int64_t rest = n % L) {
        vf a = {}, b = {};
        memcpy(&a, x + n - rest, 4 * rest), memcpy(&b, to + n - rest, 4 * rest);
        b = f(a, b);
        memcpy(to + n - rest, &b, 4 * rest);
    }
}
const float* activated(bool active, int64_t n, const float* x, float* room) {
    if (!active) return x;
    each(n, x, room, [](vf a, vf) { return gelu(a); });
    return room;
}
void sloped(int64_t n, const float* x, float* dx) {
    each(n, x, dx, [](vf a, vf b) { return b * gelu_slope(a); });
}

struct Free { void operator()(void* p) const { free(p); } };
template <class T> using Memory = std::unique_ptr<T, Free>;
template <class T> Memory<T> memory(int64_t count) {
    return Memory<T>((T*)aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
}
int64_t padded(int64_t n) { return (n + NR - 1) / NR * NR; }

// Runs f(begin, end) in parallel over parts of 0 .. n - 1; f returns whether it succeeded.
template <class F> int parallel(int64_t n, int threads, F f) {
    threads = (int)std::max<int64_t>(1, std::min<int64_t>(threads, n));
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        int64_t id = omp_get_thread_num(), count = omp_get_num_threads();
        failed |= !f(n * id / count, n * (id + 1) / count);
    }
    return failed;
}

// Elements of row k of B[K, n]. Inlined, so that a caller can pass a constant column stride.
template <class T> inline void row_of(const float* from, int64_t next, int64_t column, int64_t n,
                                      bool last, T* to) {
    if (last || DEEP<T> == 1)
        for (int64_t j = 0; j < n; j++) to[j] = joined<T>(from[j * column], 0.0f);
    else
        for (int64_t j = 0; j < n; j++)
            to[j] = joined<T>(from[j * column], from[j * column + next]);
}

// Packs B[K, N], with strides, into panels [N / NR][K / DEEP][NR], padded with zeros.
template <class T>
void pack(int64_t K, int64_t N, const float* B, int64_t row, int64_t column, T* to) {
    for (int64_t n0 = 0; n0 < N; n0 += NR)
        for (int64_t k = 0; k < K; k += DEEP<T>, to += NR) {
            const float* from = B + k * row + n0 * column;
            int64_t n = std::min<int64_t>(NR, N - n0);
            if (column == 1) row_of(from, row, 1, n, k + 1 == K, to);
            else row_of(from, row, column, n, k + 1 == K, to);
            std::fill(to + n, to + NR, T(0));
        }
}

// C[M, n] = start + A B for one panel B, added to C if `add`. K counts panel elements.
template <int M, class T>
void tile(int64_t K, const T* A, int64_t row, int64_t column, const T* B, const float* start,
          float* C, int64_t stride, bool add, int64_t n) {
    vf c[M][NV];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < NV; j++) c[i][j] = start ? *(const vf*)(start + j * L) : vf{};
    for (int64_t k = 0; k < K; k++) {
        typename Vector<T>::type b[NV];
        for (int j = 0; j < NV; j++) b[j] = *(const typename Vector<T>::type*)(B + k * NR + j * L);
        for (int i = 0; i < M; i++) {
            T a = A[i * row + k * column];
            for (int j = 0; j < NV; j++) c[i][j] = multiplied(c[i][j], b[j], a);
        }
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < NV; j++) {
            float* p = C + i * stride + j * L;
            if ((j + 1) * L <= n)
                *(unaligned*)p = add ? *(unaligned*)p + c[i][j] : c[i][j];
            else
                for (int l = 0; l < n - j * L; l++) p[l] = (add ? p[l] : 0.0f) + c[i][j][l];
        }
}

template <class T>
void tiles(int64_t m, int64_t K, const T* A, int64_t row, int64_t column, const T* B,
           const float* start, float* C, int64_t stride, bool add, int64_t n) {
    static_assert(MR == 6, "the cases below");
    switch (m) {
        case 1: return tile<1>(K, A, row, column, B, start, C, stride, add, n);
        case 2: return tile<2>(K, A, row, column, B, start, C, stride, add, n);
        case 3: return tile<3>(K, A, row, column, B, start, C, stride, add, n);
        case 4: return tile<4>(K, A, row, column, B, start, C, stride, add, n);
        case 5: return tile<5>(K, A, row, column, B, start, C, stride, add, n);
        default: return tile<6>(K, A, row, column, B, start, C, stride, add, n);
    }
}

// The rows of A[m, K] as panel elements; `room` holds them if they must be rounded.
inline const float* rows_of(int64_t, int64_t, const float* A, float*) { return A; }
inline const Pair* rows_of(int64_t m, int64_t K, const float* A, Pair* room) {
    for (int64_t i = 0, deep = (K + 1) / 2; i < m; i++) {
        for (int64_t k = 0; k < K / 2; k++)
            room[i * deep + k] = joined<Pair>(A[i * K + 2 * k], A[i * K + 2 * k + 1]);
        if (K % 2) room[i * deep + K / 2] = joined<Pair>(A[i * K + K - 1], 0.0f);
    }
    return room;
}

// C[M, N] = start + A[M, K] B[K, N], B packed.
template <class T>
void times(int64_t M, int64_t N, int64_t K, const T* A, const T* B, const float* start, float* C) {
    int64_t deep = (K + DEEP<T> - 1) / DEEP<T>;
    for (int64_t n0 = 0; n0 < N; n0 += NR)
        for (int64_t m = 0; m < M; m += MR)
            tiles(std::min<int64_t>(MR, M - m), deep, A + m * deep, deep, 1, B + n0 * deep,
                  start ? start + n0 : nullptr, C + m * N + n0, N, false,
                  std::min<int64_t>(NR, N - n0));
}

// C[M, N] = bias + A[M, K] B[K, N], B strided. Threads split blocks of rows. If x[M, N] is given, C
// is multiplied by gelu'(x).
template <class T>
int by_rows(int threads, bool active, int64_t M, int64_t N, int64_t K, const float* A,
            const float* B, int64_t row, int64_t column, const float* bias, const float* x,
            float* C) {
    int64_t wide = padded(N), deep = (K + DEEP<T> - 1) / DEEP<T>;
    Memory<T> packed = memory<T>(wide * deep);
    Memory<float> start = memory<float>(wide);
    if (!packed || !start) return 1;
    pack(K, N, B, row, column, packed.get());
    if (bias) pack(1, N, bias, N, 1, start.get());
    return parallel((M + ROWS - 1) / ROWS, threads, [&](int64_t first, int64_t last) {
        Memory<T> room = memory<T>(DEEP<T> == 1 ? 1 : ROWS * deep);
        Memory<float> outputs = memory<float>(active ? ROWS * K : 1);
        if (!room || !outputs) return false;
        for (int64_t m0 = first * ROWS; m0 < std::min(M, last * ROWS); m0 += ROWS) {
            int64_t count = std::min(M, m0 + ROWS) - m0;
            const float* left = activated(active, count * K, A + m0 * K, outputs.get());
            times(count, N, K, rows_of(count, K, left, room.get()), packed.get(),
                  bias ? start.get() : nullptr, C + m0 * N);
            if (x) sloped(count * N, x + m0 * N, C + m0 * N);
        }
        return true;
    });
}

// C[M, N] (+)= A[depth, M]^T B[depth, N] for small depth; `left` and `right` buffer panels.
template <class T>
void transposed(int64_t M, int64_t N, int64_t depth, const float* A, int64_t stride,
                const float* B, float* C, bool add, T* left, T* right) {
    int64_t deep = (depth + DEEP<T> - 1) / DEEP<T>;
    pack(depth, N, B, N, 1, right);
    for (int64_t k = 0; k < depth; k += DEEP<T>)
        row_of(A + k * stride, stride, 1, M, k + 1 == depth, left + k / DEEP<T> * M);
    for (int64_t n0 = 0; n0 < N; n0 += NR)
        for (int64_t m = 0; m < M; m += MR)
            tiles(std::min<int64_t>(MR, M - m), deep, left + m, 1, M, right + n0 * deep, nullptr,
                  C + m * N + n0, N, add, std::min<int64_t>(NR, N - n0));
}

// sums[E] (+)= column sums of grad[depth, E]
void columns(int64_t depth, int64_t E, const float* grad, int64_t stride, float* sums, bool add) {
    for (int64_t e0 = 0; e0 < E; e0 += NR) {
        float sum[NR] = {};
        int64_t count = std::min<int64_t>(NR, E - e0);
        for (int64_t n = 0; n < depth; n++)
            for (int64_t e = 0; e < count; e++) sum[e] += grad[n * stride + e0 + e];
        for (int64_t e = 0; e < count; e++) sums[e0 + e] = (add ? sums[e0 + e] : 0.0f) + sum[e];
    }
}

// Gradients of small weights: dx, dW and db of a few tokens while these are in the cache. Partial
// sums are added in a fixed order, so results do not depend on the number of threads.
template <class T>
int at_once(int threads, bool active, int64_t N, int64_t E, int64_t K, const float* grad, const float* x,
            const float* weight, float* dx, float* dweight, float* dbias) {
    int64_t parts = std::max<int64_t>(1, std::min(PARTS, N / (2 * DEPTH))), size = E * K + E;
    int64_t deep = (E + DEEP<T> - 1) / DEEP<T>;
    Memory<T> packed = memory<T>(padded(K) * deep);
    Memory<float> sums = memory<float>(parts * size);
    if (!packed || !sums) return 1;
    if (dx) pack(E, K, weight, K, 1, packed.get());
    int failed = parallel(parts, threads, [&](int64_t first, int64_t last) {
        Memory<T> rows = memory<T>(DEEP<T> == 1 ? 1 : DEPTH * deep);
        Memory<T> left = memory<T>(E * DEPTH / DEEP<T>);
        Memory<T> right = memory<T>(padded(K) * DEPTH / DEEP<T>);
        Memory<float> outputs = memory<float>(active ? DEPTH * K : 1);
        if (!rows || !left || !right || !outputs) return false;
        for (int64_t part = first; part < last; part++)
            for (int64_t begin = N * part / parts, n = begin, end = N * (part + 1) / parts; n < end;
                 n += DEPTH) {
                int64_t depth = std::min(DEPTH, end - n);
                float* sum = sums.get() + part * size;
                if (dx)
                    times(depth, K, E, rows_of(depth, E, grad + n * E, rows.get()), packed.get(),
                          nullptr, dx + n * K);
                if (dx && active) sloped(depth * K, x + n * K, dx + n * K);
                const float* inputs = activated(active, depth * K, x + n * K, outputs.get());
                transposed(E, K, depth, grad + n * E, E, inputs, sum, n > begin, left.get(),
                           right.get());
                columns(depth, E, grad + n * E, E, sum + E * K, n > begin);
            }
        return true;
    });
    return failed | parallel((size + NR - 1) / NR, threads, [&](int64_t first, int64_t last) {
        for (int64_t i = first * NR; i < std::min(size, last * NR); i++) {
            float total = 0.0f;
            for (int64_t part = 0; part < parts; part++) total += sums.get()[part * size + i];
            if (i < E * K) dweight[i] = total;
            else if (dbias) dbias[i - E * K] = total;
        }
        return true;
    });
}

// Gradients of large weights: threads split the rows of dW.
template <class T>
int one_by_one(int threads, bool active, int64_t N, int64_t E, int64_t K, const float* grad, const float* x,
               const float* weight, float* dx, float* dweight, float* dbias) {
    const float* slope = active ? x : nullptr;
    if (dx && by_rows<T>(threads, false, N, K, E, grad, weight, K, 1, nullptr, slope, dx)) return 1;
    return parallel((E + MR - 1) / MR, threads, [&](int64_t first, int64_t last) {
        if (first == last) return true;
        int64_t begin = first * MR, width = std::min(E, last * MR) - begin;
        Memory<T> right = memory<T>(padded(K) * DEPTH / DEEP<T>);
        Memory<T> left = memory<T>(width * DEPTH / DEEP<T>);
        Memory<float> outputs = memory<float>(active ? DEPTH * K : 1);
        if (!right || !left || !outputs) return false;
        for (int64_t n = 0; n < N; n += DEPTH) {
            int64_t depth = std::min(DEPTH, N - n);
            const float* inputs = activated(active, depth * K, x + n * K, outputs.get());
            transposed(width, K, depth, grad + n * E + begin, E, inputs, dweight + begin * K,
                       n > 0, left.get(), right.get());
            if (dbias) columns(depth, width, grad + n * E + begin, E, dbias + begin, n > 0);
        }
        return true;
    });
}
}  // namespace

extern "C" {
int hyla_linear(int threads, int options, int64_t N, int64_t E, int64_t K, const float* x,
                const float* weight, const float* bias, float* y) {
    auto function = options & HALF ? by_rows<Pair> : by_rows<float>;
    return function(threads, options & GELU, N, E, K, x, weight, 1, K, bias, nullptr, y);
}

// dx and dbias may be null.
int hyla_linear_backward(int threads, int options, int64_t N, int64_t E, int64_t K,
                         const float* grad, const float* x, const float* weight, float* dx,
                         float* dweight, float* dbias) {
    if (!N) {
        std::fill(dweight, dweight + E * K, 0.0f);
        if (dbias) std::fill(dbias, dbias + E, 0.0f);
        return 0;
    }
    bool half = options & HALF;
    auto function = E * K > LARGEST ? half ? one_by_one<Pair> : one_by_one<float>
                                    : half ? at_once<Pair> : at_once<float>;
    return function(threads, options & GELU, N, E, K, grad, x, weight, dx, dweight, dbias);
}

// One AdamW step of one member, in place; formula in hyla/train/optimiser.py.
void hyla_adamw(int threads, int64_t P, float* parameters, float* first, float* second,
                const float* gradients, const float* decayed, float beta1, float beta2,
                float epsilon, float rate, float shrink, float root) {
    parallel((P + L - 1) / L, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * L; i < std::min(P, end * L); i++) {
            float g = gradients[i];
            first[i] = g + beta1 * (first[i] - g);
            second[i] = g * g + beta2 * (second[i] - g * g);
            float kept = parameters[i] - shrink * (parameters[i] * decayed[i]);
            parameters[i] = kept - rate * (first[i] / (sqrtf(second[i]) / root + epsilon));
        }
        return true;
    });
}
}
