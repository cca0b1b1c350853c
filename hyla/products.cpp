// Products of float32 matrices and AdamW in one pass, for processors on which MKL is slow.
//
// y[N, E] = x[N, K] W[E, K]^T + b with its gradients dx = g W, dW = g^T x, db = sum_n g.
// One matrix is packed into panels of NR columns; a tile of MR x NR sums stays in registers while
// it runs down a panel. Threads split rows, so a result does not depend on their number.
//
// Plain C ABI. Functions return 0, or 1 if there is no memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <omp.h>

namespace {
#if defined(__AVX512F__)
constexpr int L = 16, NV = 4;  // numbers of a vector, vectors of a panel
#elif defined(__AVX__)
constexpr int L = 8, NV = 2;
#else
constexpr int L = 4, NV = 2;
#endif
constexpr int NR = NV * L, MR = 6;
constexpr int64_t DEPTH = 128;   // tokens that a weight gradient packs at a time
constexpr int64_t ROWS = 12 * MR;  // rows that one panel is used for before the next

typedef float vf __attribute__((vector_size(4 * L), may_alias));
typedef float unaligned __attribute__((vector_size(4 * L), aligned(4), may_alias));

struct Free { void operator()(float* p) const { free(p); } };
using Memory = std::unique_ptr<float, Free>;
Memory memory(int64_t count) {
    return Memory((float*)aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64));
}
int64_t padded(int64_t n) { return (n + NR - 1) / NR * NR; }

// Runs f(begin, end) over parts of 0 .. n - 1; f returns whether it succeeded.
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

// Packs B[K, N], with strides, into panels [N / NR][K][NR], padded with zeros.
void pack(int64_t K, int64_t N, const float* B, int64_t row, int64_t column, float* to) {
    for (int64_t n0 = 0; n0 < N; n0 += NR)
        for (int64_t k = 0; k < K; k++, to += NR) {
            const float* from = B + k * row + n0 * column;
            int64_t n = std::min<int64_t>(NR, N - n0);
            for (int64_t j = 0; j < n; j++) to[j] = from[j * column];
            for (int64_t j = n; j < NR; j++) to[j] = 0.0f;
        }
}

// C[M, n] = start + A B for one panel B; with `add` to what C holds.
template <int M>
void tile(int64_t K, const float* A, int64_t row, int64_t column, const float* B,
          const float* start, float* C, int64_t stride, bool add, int64_t n) {
    vf c[M][NV];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < NV; j++) c[i][j] = start ? *(const vf*)(start + j * L) : vf{};
    for (int64_t k = 0; k < K; k++) {
        vf b[NV];
        for (int j = 0; j < NV; j++) b[j] = *(const vf*)(B + k * NR + j * L);
        for (int i = 0; i < M; i++) {
            float a = A[i * row + k * column];
            for (int j = 0; j < NV; j++) c[i][j] += b[j] * a;
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

void tiles(int64_t m, int64_t K, const float* A, int64_t row, int64_t column, const float* B,
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

// C[M, N] = bias + A[M, K] B[K, N], B with strides. Threads split blocks of rows.
int by_rows(int threads, int64_t M, int64_t N, int64_t K, const float* A, const float* B,
            int64_t row, int64_t column, const float* bias, float* C) {
    int64_t wide = padded(N);
    Memory packed = memory(wide * K + wide);
    if (!packed) return 1;
    float* start = packed.get() + wide * K;
    pack(K, N, B, row, column, packed.get());
    if (bias) pack(1, N, bias, N, 1, start);
    return parallel((M + ROWS - 1) / ROWS, threads, [&](int64_t first, int64_t last) {
        for (int64_t m0 = first * ROWS; m0 < std::min(M, last * ROWS); m0 += ROWS)
            for (int64_t n0 = 0; n0 < N; n0 += NR)
                for (int64_t m = m0, end = std::min(M, m0 + ROWS); m < end; m += MR)
                    tiles(std::min<int64_t>(MR, end - m), K, A + m * K, K, 1, packed.get() + n0 * K,
                          bias ? start + n0 : nullptr, C + m * N + n0, N, false,
                          std::min<int64_t>(NR, N - n0));
        return true;
    });
}

// C[M, N] = A^T B with A[K, M], B[K, N], where K is long. Threads split the rows of C.
int by_depth(int threads, int64_t M, int64_t N, int64_t K, const float* A, const float* B, float* C) {
    return parallel((M + MR - 1) / MR, threads, [&](int64_t first, int64_t last) {
        if (first == last) return true;
        Memory right = memory(padded(N) * DEPTH), left = memory(MR * DEPTH * (last - first));
        if (!right || !left) return false;
        for (int64_t k0 = 0; k0 < K; k0 += DEPTH) {
            int64_t depth = std::min(DEPTH, K - k0);
            pack(depth, N, B + k0 * N, N, 1, right.get());
            for (int64_t t = first; t < last; t++) {
                int64_t m = std::min<int64_t>(MR, M - t * MR);
                float* to = left.get() + (t - first) * MR * DEPTH;
                for (int64_t k = 0; k < depth; k++)
                    for (int64_t i = 0; i < m; i++) to[k * MR + i] = A[(k0 + k) * M + t * MR + i];
            }
            for (int64_t n0 = 0; n0 < N; n0 += NR)
                for (int64_t t = first; t < last; t++)
                    tiles(std::min<int64_t>(MR, M - t * MR), depth,
                          left.get() + (t - first) * MR * DEPTH, 1, MR, right.get() + n0 * depth,
                          nullptr, C + t * MR * N + n0, N, k0 > 0, std::min<int64_t>(NR, N - n0));
        }
        return true;
    });
}
}  // namespace

extern "C" {
int hyla_linear(int threads, int64_t N, int64_t E, int64_t K, const float* x, const float* weight,
                const float* bias, float* y) {
    return by_rows(threads, N, E, K, x, weight, 1, K, bias, y);
}

// dx and dbias may be null.
int hyla_linear_backward(int threads, int64_t N, int64_t E, int64_t K, const float* grad,
                         const float* x, const float* weight, float* dx, float* dweight,
                         float* dbias) {
    if (dx && by_rows(threads, N, K, E, grad, weight, K, 1, nullptr, dx)) return 1;
    if (dbias)
        parallel((E + L - 1) / L, threads, [&](int64_t first, int64_t last) {
            int64_t begin = first * L, end = std::min(E, last * L);
            std::fill(dbias + begin, dbias + end, 0.0f);
            for (int64_t n0 = 0; n0 < N; n0 += DEPTH) {  // sums of sums, which round less
                float sums[L] = {};
                for (int64_t e0 = begin; e0 < end; e0 += L) {
                    int64_t lanes = std::min<int64_t>(L, end - e0);
                    std::fill(sums, sums + L, 0.0f);
                    for (int64_t n = n0; n < std::min(N, n0 + DEPTH); n++)
                        for (int64_t l = 0; l < lanes; l++) sums[l] += grad[n * E + e0 + l];
                    for (int64_t l = 0; l < lanes; l++) dbias[e0 + l] += sums[l];
                }
            }
            return true;
        });
    return by_depth(threads, E, K, N, grad, x, dweight);
}

// One step of AdamW for a member, in place; hyla/train/optimiser.py has the formula.
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
