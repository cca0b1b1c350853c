// Attention for thousands of short sequences with thin heads: 36 tokens, 16 heads of size 4.
//
// The matrices are too small for tensor cores, so each thread works in its own registers. A warp
// processes one row (a query; in key_gradient a key) of SEQS sequences. The heads of a row are split
// over GROUP neighbouring lanes, HL heads each; sums over heads are completed across these lanes. A
// head too large for a lane is itself split over SLICES lanes: a part is a head or a slice of one. The
// other tokens of the sequences are read through shared memory, CHUNK at a time. Neither heads nor
// sequences are padded, and no thread waits for a longer sequence.
//
// The host defines: KERNEL (0 forward, 1 query_gradient, 2 key_gradient), HEADS, SLICES, D, V (sizes
// of a part), GROUP, ROWS (queries per thread, in forward), WARPS, BLOCKS (per multiprocessor),
// CHUNK, NORMALISER (0 none, 1 rms_head, 2 softmax), MLP, DEEP (requires MLP and one slice), RELU,
// CAUSAL, BIAS, BIAS_GRADIENT, LENGTHS, FACTORS, and TYPE (0 float, 1 bfloat16, 2 float16).
// Sequence n belongs to member n / per_member; bias is [member][query][key][head], all else as in
// Python.
//
// A factor f of a pair's code, the same for all heads, needs no register per head: the code stays a,
// and f multiplies quantities without heads, z = f sum_h a_h v_h and the values f phi(z).

#define INFINITE __uint_as_float(0x7f800000u)
#define LARGEST __uint_as_float(0x7f7fffffu)

constexpr int LANES = 32;
constexpr int PARTS = HEADS * SLICES;
constexpr int HL = (PARTS + GROUP - 1) / GROUP;  // 1 with several slices
constexpr int SEQS = LANES / GROUP;
constexpr bool EVEN = PARTS % GROUP == 0;
// Without an MLP, codes enter linearly, so the softmax can be normalised last, in one pass over the
// keys. Then delta = sum_k a da = dout . out, if the output is not rounded.
constexpr bool SUMS_FIRST = NORMALISER == 2 && MLP;
constexpr bool SUMS_LAST = NORMALISER == 2 && !MLP;
constexpr bool DELTA_OF_OUTPUT = SUMS_LAST && TYPE == 0;
static_assert(SLICES == 1 || HL == 1 && !DEEP, "with several slices, HL must be 1 and DEEP 0");

#if TYPE == 0
typedef float number;
__device__ inline float widen(number x) { return x; }
__device__ inline number narrow(float x) { return x; }
#elif TYPE == 1
struct number { unsigned short bits; };
__device__ inline float widen(number x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline number narrow(float x) {
  unsigned bits = __float_as_uint(x);
  if (x != x) return {(unsigned short)(bits >> 16 | 64)};
  return {(unsigned short)(bits + 0x7fff + (bits >> 16 & 1) >> 16)};
}
#else
struct number { unsigned short bits; };
#ifdef __CUDA_ARCH__
__device__ inline float widen(number x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
__device__ inline number narrow(float x) {
  number y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#else
__device__ inline float widen(number x) { return __builtin_bit_cast(_Float16, x); }
__device__ inline number narrow(float x) { return __builtin_bit_cast(number, (_Float16)x); }
#endif
#endif

// Shared memory is read in units of 16 bytes. Each lane and token has an odd number of units, so that
// lanes served together do not conflict in a bank.
constexpr int PER_UNIT = 16 / sizeof(number);
struct alignas(16) Unit { number part[PER_UNIT]; };
template <int SIZE> constexpr int UNITS = (HL * SIZE + PER_UNIT - 1) / PER_UNIT | 1;

// Number i of a unit, in one instruction; through `part` it would take two.
__device__ inline float widen_part(const unsigned (&words)[4], int i) {
#if TYPE == 0
  return __uint_as_float(words[i]);
#elif TYPE == 1
  return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
#else
  return widen({(unsigned short)(words[i / 2] >> i % 2 * 16)});
#endif
}

// How many numbers of a lane's heads can be copied at once: 16 bytes, 8 bytes or one number.
template <int SIZE> constexpr int COPIED =
    !EVEN ? 1 : HL * SIZE % PER_UNIT == 0 ? PER_UNIT : HL * SIZE % (PER_UNIT / 2) == 0 ? PER_UNIT / 2 : 1;
template <int COUNT> struct alignas(COUNT * sizeof(number)) Piece { number part[COUNT]; };

// Copies BYTES from global to shared memory asynchronously, or writes zeros.
template <int BYTES>
__device__ inline void copy(void* to, const void* from, bool exists) {
#ifdef __CUDA_ARCH__
  unsigned shared = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(BYTES),
               "r"(exists ? BYTES : 0));
#else
  memset(to, 0, BYTES);
  if (exists) memcpy(to, from, BYTES);
#endif
}

// Waits for all copies except the last group.
__device__ inline void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
  __syncthreads();
}

__device__ inline void end_group_of_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// The sequences and rows of this block and thread.
struct Place {
  int lane, group, row;   // group: index among the row's GROUP lanes; row: the first of ROWS
  int member, first, n;   // first: the block's first sequence; n: this thread's sequence
  int valid;              // how many of the SEQS sequences exist
  bool exists;            // whether this thread's sequence exists
};

__device__ inline Place find_place(int per_member) {
  int groups = (per_member + SEQS - 1) / SEQS;
  Place p;
  p.lane = threadIdx.x % LANES;
  p.group = p.lane % GROUP;
  p.row = (blockIdx.y * WARPS + threadIdx.x / LANES) * ROWS;
  p.member = blockIdx.x / groups;
  int within = blockIdx.x % groups * SEQS;
  p.first = p.member * per_member + within;
  p.n = p.first + p.lane / GROUP;
  p.valid = min(SEQS, per_member - within);
  p.exists = p.lane / GROUP < p.valid;
  return p;
}

template <int FROM, int TO>
__device__ inline float sum_over_lanes(float x) {
#pragma unroll
  for (int step = FROM; step < TO; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ inline float sum_over_slices(float x) { return sum_over_lanes<1, SLICES>(x); }
__device__ inline float sum_over_heads(float x) { return sum_over_lanes<SLICES, GROUP>(x); }

// The first head of a lane, or the head of its slice.
__device__ inline int first_head(int group) { return group * HL / SLICES; }

// Load and store this lane's heads of one token. SIZE is D or V.
template <int SIZE>
__device__ inline void load_heads(float (&to)[HL * SIZE], const number* token, int group, bool exists,
                                  float factor = 1.f) {
  constexpr int COUNT = COPIED<SIZE>;
#pragma unroll
  for (int e = 0; e < HL * SIZE; e += COUNT) {
    int at = group * HL * SIZE + e;
    Piece<COUNT> piece = {};
    if (exists && (EVEN || at < PARTS * SIZE)) piece = *(const Piece<COUNT>*)(token + at);
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[e + i] = widen(piece.part[i]) * factor;
  }
}

template <int SIZE>
__device__ inline void store_heads(number* token, const float (&from)[HL * SIZE], int group,
                                   float factor = 1.f) {
  constexpr int COUNT = COPIED<SIZE>;
#pragma unroll
  for (int e = 0; e < HL * SIZE; e += COUNT) {
    int at = group * HL * SIZE + e;
    Piece<COUNT> piece;
#pragma unroll
    for (int i = 0; i < COUNT; i++) piece.part[i] = narrow(from[e + i] * factor);
    if (EVEN || at < PARTS * SIZE) *(Piece<COUNT>*)(token + at) = piece;
  }
}

// Copies CHUNK tokens of all the block's sequences to shared memory, zero beyond the end.
template <int SIZE>
__device__ inline void copy_tokens(Unit* to, const number* x, const Place& p, int tokens, int start) {
  constexpr int COUNT = COPIED<SIZE>, LANE = HL * SIZE, TOKEN = GROUP * LANE / COUNT;
#pragma unroll 1
  for (int i = threadIdx.x; i < SEQS * CHUNK * TOKEN; i += WARPS * LANES) {
    int e = i % TOKEN * COUNT, column = i / TOKEN % CHUNK, seq = i / TOKEN / CHUNK;
    bool exists = seq < p.valid && start + column < tokens && (EVEN || e < PARTS * SIZE);
    size_t token = (size_t)(p.first + seq) * tokens + start + column;
    const number* from = exists ? x + token * PARTS * SIZE + e : x;
    number* at = (number*)(to + (column * LANES + seq * GROUP + e / LANE) * UNITS<SIZE>) + e % LANE;
    if constexpr (COUNT > 1) copy<COUNT * sizeof(number)>(at, from, exists);
    else *at = exists ? *from : narrow(0.f);
  }
}

template <int COUNT>
__device__ inline void read(float (&to)[COUNT], const Unit* from) {
#pragma unroll
  for (int u = 0; u * PER_UNIT < COUNT; u++) {
    uint4 unit = ((const uint4*)from)[u];
    unsigned words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int i = 0; i < PER_UNIT; i++)
      if (u * PER_UNIT + i < COUNT) to[u * PER_UNIT + i] = widen_part(words, i);
  }
}

// Copies per-pair data of CHUNK columns and the block's rows, [column][row][number]: a bias per head, or
// a factor. Rows are queries or keys, columns the others, with strides row_step and column_step.
constexpr int BLOCK_ROWS = WARPS * ROWS;

template <int NUMBERS>
__device__ inline void copy_pairs(float* to, const float* pairs, size_t row_step, int rows,
                                  size_t column_step, int columns, int start) {
  constexpr int COUNT = NUMBERS % 4 == 0 ? 4 : 1, TOKEN = NUMBERS / COUNT;
#pragma unroll 1
  for (int i = threadIdx.x; i < CHUNK * BLOCK_ROWS * TOKEN; i += WARPS * LANES) {
    int e = i % TOKEN * COUNT, row = i / TOKEN % BLOCK_ROWS, column = i / TOKEN / BLOCK_ROWS;
    int from_row = blockIdx.y * BLOCK_ROWS + row;
    bool exists = from_row < rows && start + column < columns;
    const float* from = exists ? pairs + from_row * row_step + (start + column) * column_step + e : pairs;
    copy<COUNT * sizeof(float)>(to + (column * BLOCK_ROWS + row) * NUMBERS + e, from, exists);
  }
}

// Double-buffered columns. The factors follow the biases.
constexpr int BIASES = BIAS ? CHUNK * BLOCK_ROWS * HEADS : 0;
constexpr int OF_PAIRS = BIASES + (FACTORS ? CHUNK * BLOCK_ROWS : 0);

struct Columns {
  Unit d[CHUNK * LANES * UNITS<D>], v[CHUNK * LANES * UNITS<V>];
  alignas(16) float bias[OF_PAIRS ? OF_PAIRS : 1];

  __device__ float* factors() { return bias + BIASES; }
  __device__ float factor(int column, int row) const {
    return FACTORS ? bias[BIASES + column * BLOCK_ROWS + row % BLOCK_ROWS] : 1.f;
  }
};

// This lane's HL of HEADS numbers.
__device__ inline void load_per_head(float (&to)[HL], const float* from, int group) {
  if constexpr (EVEN && HL % 4 == 0) {
#pragma unroll
    for (int h = 0; h < HL; h += 4) {
      float4 part = *(const float4*)(from + first_head(group) + h);
      to[h] = part.x, to[h + 1] = part.y, to[h + 2] = part.z, to[h + 3] = part.w;
    }
  } else {
#pragma unroll
    for (int h = 0; h < HL; h++) to[h] = first_head(group) + h < HEADS ? from[first_head(group) + h] : 0.f;
  }
}

// The bias of a pair for this lane's heads, and which of them are unmasked.
struct Pair {
  float bias[HL];
  int group;
  bool seen;

  __device__ Pair(const float* pair_bias, int group, bool seen) : group(group), seen(seen) {
    if constexpr (BIAS) load_per_head(bias, pair_bias, group);
  }
  __device__ bool keeps(int h) const {
    return seen && (EVEN || first_head(group) + h < HEADS) && (!BIAS || bias[h] != -INFINITE);
  }
};

// Scores s_h of a pair, 0 where masked. q or k has been multiplied by the scale.
__device__ inline void scores(float (&s)[HL], const float (&q)[HL * D], const float (&k)[HL * D],
                              const Pair& pair) {
#pragma unroll
  for (int h = 0; h < HL; h++) {
    float sum = BIAS && pair.group % SLICES == 0 ? pair.bias[h] : 0.f;
#pragma unroll
    for (int d = 0; d < D; d++) sum += q[h * D + d] * k[h * D + d];
    sum = sum_over_slices(sum);
    s[h] = pair.keeps(h) ? sum : 0.f;
  }
}

// Replaces scores by the latent code a_h. Returns the factor r of RMSHead.
__device__ inline float normalise(float (&s)[HL], const Pair& pair, const float (&lse)[HL], float eps) {
  float r = 1.f;
  if constexpr (NORMALISER == 1) {
    float squares = 0.f;
#pragma unroll
    for (int h = 0; h < HL; h++) squares += s[h] * s[h];
    r = rsqrtf(sum_over_heads(squares) / HEADS + eps);
  }
#pragma unroll
  for (int h = 0; h < HL; h++) {
    if constexpr (NORMALISER == 1) s[h] *= r;
    if constexpr (NORMALISER == 2) s[h] = pair.keeps(h) ? expf(s[h] - lse[h]) : 0.f;
  }
  return r;
}

// Online softmax over keys: adds exp(score - top) to the total and stores it in place of the score.
// Returns the factor for rescaling earlier sums.
__device__ inline float add_to_softmax(float& score, float& top, float& total, bool keeps) {
  bool higher = keeps && score > top;
  float part = expf(higher ? top - score : score - top), factor = higher ? part : 1.f;
  float own = higher ? 1.f + (score - score) : part;  // infinity leaves NaN
  top = higher ? score : top;
  score = keeps ? own : 0.f;
  total = total * factor + score;
  return factor;
}

// f sum_h a_h w_h over the heads of a row, for instance z = f sum_h a_h v_h.
__device__ inline void mix(float (&z)[V], const float (&a)[HL], const float (&w)[HL * V], float f) {
#pragma unroll
  for (int c = 0; c < V; c++) {
    float sum = 0.f;
#pragma unroll
    for (int h = 0; h < HL; h++) sum += a[h] * w[h * V + c];
    z[c] = f * sum_over_heads(sum);
  }
}

// The matrices W_h of a deep value network, grouped by lane. Lanes of a group start in different
// banks. Missing heads are zero.
constexpr int DEEP_LANE = (HL * V * V + 3) / 4 | 1;  // in units of 4 numbers
constexpr int DEEP_UNITS = DEEP ? GROUP * DEEP_LANE : 1;

__device__ inline void load_deep(float4* to, const number* deep, int member) {
  if constexpr (!DEEP) return;
  const number* from = deep + (size_t)member * HEADS * V * V;
  for (int i = threadIdx.x; i < DEEP_UNITS * 4; i += WARPS * LANES) {
    int within = i % (DEEP_LANE * 4), at = i / (DEEP_LANE * 4) * HL * V * V + within;
    ((float*)to)[i] = within < HL * V * V && at < HEADS * V * V ? widen(from[at]) : 0.f;
  }
}

// W_h of head h of a lane.
__device__ inline void read_matrix(float (&w)[V * V], const float4* lane, int h) {
#pragma unroll
  for (int i = 0; i < V * V; i++) {
    if constexpr (V % 2 == 0) {
      float4 part = lane[(h * V * V + i) / 4];
      w[i] = i % 4 == 0 ? part.x : i % 4 == 1 ? part.y : i % 4 == 2 ? part.z : part.w;
    } else {
      w[i] = ((const float*)lane)[h * V * V + i];
    }
  }
}

// Unlike fmaxf, propagates NaN.
__device__ inline float phi(float x) {
  if constexpr (!RELU) return x;
#ifdef __CUDA_ARCH__
  asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));
  return x;
#else
  return x < 0.f ? 0.f : x;
#endif
}
__device__ inline float slope(float x) { return !RELU || x > 0.f ? 1.f : 0.f; }

// The second hidden layer before its nonlinearity, f sum_h a_h W_h z, and wide_h = W_h z.
__device__ inline void second_layer(float (&last)[V], float (&wide)[HL * V], const float (&a)[HL],
                                    const float (&z)[V], const float4* deep, float f) {
#pragma unroll
  for (int h = 0; h < HL; h++) {
    float w[V * V];
    read_matrix(w, deep, h);
#pragma unroll
    for (int u = 0; u < V; u++) {
      wide[h * V + u] = 0.f;
#pragma unroll
      for (int c = 0; c < V; c++) wide[h * V + u] += w[u * V + c] * z[c];
    }
  }
  mix(last, a, wide, f);
}

// The gradient da_h of a pair's code. With an MLP also dz, f times the gradient of z.
__device__ inline void code_gradient(float (&da)[HL], float (&dz)[V], const float (&a)[HL],
                                     const float (&v)[HL * V], const float (&grad)[HL * V], float f) {
  float z[V];
  if constexpr (MLP) {
    mix(z, a, v, f);
    mix(dz, a, grad, f * f);
  }
#pragma unroll
  for (int h = 0; h < HL; h++) da[h] = 0.f;
#pragma unroll
  for (int c = 0; c < V; c++) {
    if constexpr (MLP) dz[c] *= slope(z[c]);
#pragma unroll
    for (int h = 0; h < HL; h++) {
      float value = MLP ? f * phi(z[c]) : phi(v[h * V + c]);
      da[h] += grad[h * V + c] * value;
      if constexpr (MLP) da[h] += v[h * V + c] * dz[c];
    }
  }
#pragma unroll
  for (int h = 0; h < HL; h++) da[h] = sum_over_slices(da[h]) * (MLP ? 1.f : f);
}

// The same for a deep value network; also its first hidden layer z, and dlast, f times the gradient of
// the second.
__device__ inline void deep_code_gradient(float (&da)[HL], float (&dz)[V], float (&dlast)[V], float (&z)[V],
                                          const float (&a)[HL], const float (&v)[HL * V],
                                          const float (&grad)[HL * V], const float4* deep, float f) {
  float last[V], wide[HL * V], back[V] = {};
  mix(z, a, v, f);
#pragma unroll
  for (int c = 0; c < V; c++) z[c] = phi(z[c]);
  second_layer(last, wide, a, z, deep, f);
  mix(dlast, a, grad, f * f);
#pragma unroll
  for (int c = 0; c < V; c++) dlast[c] *= slope(last[c]), last[c] = f * phi(last[c]);
#pragma unroll
  for (int h = 0; h < HL; h++) {
    float w[V * V];
    read_matrix(w, deep, h);
    da[h] = 0.f;
#pragma unroll
    for (int c = 0; c < V; c++) {
      da[h] += grad[h * V + c] * last[c] + wide[h * V + c] * dlast[c];
      float sum = 0.f;
#pragma unroll
      for (int u = 0; u < V; u++) sum += w[u * V + c] * dlast[u];
      back[c] += a[h] * sum;
    }
  }
#pragma unroll
  for (int c = 0; c < V; c++) dz[c] = f * sum_over_heads(back[c]) * slope(z[c]);
#pragma unroll
  for (int h = 0; h < HL; h++)
#pragma unroll
    for (int c = 0; c < V; c++) da[h] += v[h * V + c] * dz[c];
}

// Replaces the gradient of the code by that of the scores.
__device__ inline void score_gradient(float (&da)[HL], const float (&a)[HL], const Pair& pair,
                                      float r, float eps, const float (&delta)[HL]) {
  float mean = 0.f;
  if constexpr (NORMALISER == 1) {
#pragma unroll
    for (int h = 0; h < HL; h++) mean += da[h] * a[h];
    mean = sum_over_heads(mean) / HEADS;
  }
#pragma unroll
  for (int h = 0; h < HL; h++) {
    // With a single head, a is close to +-1: da - a mean would cancel to rounding errors.
    if constexpr (NORMALISER == 1) da[h] = HEADS == 1 ? r * r * r * eps * da[h] : r * (da[h] - a[h] * mean);
    if constexpr (NORMALISER == 2) da[h] = a[h] * (da[h] - delta[h]);
    da[h] = pair.keeps(h) ? da[h] : 0.f;
  }
}

// Sums the HL numbers of each lane over the SEQS sequences of the warp and writes them to out[head].
// Each step halves the numbers that a lane is responsible for.
__device__ inline void add_over_sequences(float* out, const float (&x)[HL], int lane) {
  constexpr int COUNT = HL <= 1 ? 1 : HL <= 2 ? 2 : HL <= 4 ? 4 : HL <= 8 ? 8 : HL <= 16 ? 16 : 32;
  float y[COUNT];
#pragma unroll
  for (int h = 0; h < COUNT; h++) y[h] = h < HL ? x[h] : 0.f;
  int count = COUNT, mine = 0;
  bool writes = lane % SLICES == 0;
#pragma unroll
  for (int step = GROUP; step < LANES; step *= 2) {
    bool upper = lane & step;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int h = 0; h < COUNT / 2; h++) {
        if (h < count) {
          float keep = upper ? y[h + count] : y[h];
          y[h] = keep + __shfl_xor_sync(0xffffffffu, upper ? y[h] : y[h + count], step);
        }
      }
      mine += upper ? count : 0;
    } else {
      y[0] += __shfl_xor_sync(0xffffffffu, y[0], step);
      writes = writes && !upper;
    }
  }
  if (writes) {
#pragma unroll
    for (int h = 0; h < COUNT; h++) {
      int head = first_head(lane % GROUP) + mine + h;
      if (h < count && mine + h < HL && head < HEADS) out[head] = y[h];
    }
  }
}

// Whether a pair is unmasked, not counting a bias of -inf.
__device__ inline bool sees(int queries, int keys, int query, int key, int length) {
  return (!CAUSAL || key <= query + keys - queries) && (!LENGTHS || key < length);
}

#if KERNEL == 0
extern "C" __global__ void __launch_bounds__(WARPS * LANES, BLOCKS)
    forward(const number* q, const number* k, const number* v, const float* bias, const int* lengths,
            const number* deep, const float* factors, number* out, float* lse, int per_member, int queries, int keys,
            double scale, double eps) {
  __shared__ Columns buffers[2];
  __shared__ float4 matrices[DEEP_UNITS];
  Place p = find_place(per_member);
  load_deep(matrices, deep, p.member);
  int length = LENGTHS && p.exists ? lengths[p.n] : keys;
  float q_row[ROWS][HL * D], o[ROWS][HL * V] = {};
  float top[ROWS][HL], total[ROWS][HL];  // of the softmax; after pass 0, top is the log-sum-exp
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    bool exists = p.exists && p.row + r < queries;
    load_heads<D>(q_row[r], q + ((size_t)p.n * queries + p.row + r) * PARTS * D, p.group, exists, (float)scale);
#pragma unroll
    for (int h = 0; h < HL; h++) top[r][h] = -LARGEST, total[r][h] = 0.f;
  }
  int last_row = min((int)(blockIdx.y + 1) * BLOCK_ROWS, queries) - 1;
  int end = CAUSAL ? last_row + keys - queries + 1 : keys;
  const float* member_bias = bias + (size_t)p.member * queries * keys * HEADS;
  const float* member_factors = factors + (size_t)p.member * queries * keys;
  auto copy_columns = [&](int start, int pass) {
    if (start < end) {
      Columns& to = buffers[start / CHUNK % 2];
      copy_tokens<D>(to.d, k, p, keys, start);
      if (pass == 1) copy_tokens<V>(to.v, v, p, keys, start);
      if constexpr (BIAS)
        copy_pairs<HEADS>(to.bias, member_bias, (size_t)keys * HEADS, queries, HEADS, keys, start);
      if constexpr (FACTORS) copy_pairs<1>(to.factors(), member_factors, keys, queries, 1, keys, start);
    }
    end_group_of_copies();
  };
#pragma unroll
  for (int pass = SUMS_FIRST ? 0 : 1; pass < 2; pass++) {
    copy_columns(0, pass);
    for (int start = 0; start < end; start += CHUNK) {
      copy_columns(start + CHUNK, pass);
      wait_for_copies();
      const Columns& given = buffers[start / CHUNK % 2];
      int columns = min(CHUNK, end - start);
      for (int column = 0; column < columns; column++) {
        int key = start + column;
        float k_column[HL * D], v_column[HL * V], a[ROWS][HL];
        read(k_column, given.d + (column * LANES + p.lane) * UNITS<D>);
        if (pass == 1) read(v_column, given.v + (column * LANES + p.lane) * UNITS<V>);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          Pair pair(given.bias + (column * BLOCK_ROWS + p.row % BLOCK_ROWS + r) * HEADS, p.group,
                    sees(queries, keys, p.row + r, key, length));
          scores(a[r], q_row[r], k_column, pair);
          if (pass == 1 && !SUMS_LAST) {
            normalise(a[r], pair, top[r], (float)eps);
            continue;
          }
#pragma unroll
          for (int h = 0; h < HL; h++) {
            float factor = add_to_softmax(a[r][h], top[r][h], total[r][h], pair.keeps(h));
            if constexpr (SUMS_LAST) {
#pragma unroll
              for (int c = 0; c < V; c++) o[r][h * V + c] *= factor;
            }
          }
        }
        if (pass == 0) continue;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          float z[V], f = given.factor(column, p.row + r);
          if constexpr (MLP) mix(z, a[r], v_column, f);
          if constexpr (DEEP) {
            float first[V], wide[HL * V];
#pragma unroll
            for (int c = 0; c < V; c++) first[c] = phi(z[c]);
            second_layer(z, wide, a[r], first, matrices + p.group * DEEP_LANE, f);
          }
#pragma unroll
          for (int h = 0; h < HL; h++) {
            float code = MLP ? a[r][h] : a[r][h] * f;
#pragma unroll
            for (int c = 0; c < V; c++)
              o[r][h * V + c] += code * (MLP ? f * phi(z[c]) : phi(v_column[h * V + c]));
          }
        }
      }
      __syncthreads();
    }
    if (pass == 0 || SUMS_LAST) {
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int h = 0; h < HL; h++) {
          bool none = total[r][h] == 0.f;  // all keys are masked
          top[r][h] = none ? INFINITE : top[r][h] + logf(total[r][h]);
          if constexpr (SUMS_LAST) {
#pragma unroll
            for (int c = 0; c < V; c++) o[r][h * V + c] *= none ? 0.f : 1.f / total[r][h];
          }
        }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (!p.exists || p.row + r >= queries) continue;
    size_t token = (size_t)p.n * queries + p.row + r;
    store_heads<V>(out + token * PARTS * V, o[r], p.group);
    if constexpr (NORMALISER == 2) {
#pragma unroll
      for (int h = 0; h < HL; h++)
        if (first_head(p.group) + h < HEADS) lse[token * HEADS + first_head(p.group) + h] = top[r][h];
    }
  }
}

#elif KERNEL == 1
// dq; for softmax also delta = sum_k a da. With BIAS_GRADIENT, the bias gradient summed over each warp's
// sequences, [block][query][key][head]; with DEEP, the matrices' gradient summed over these and over
// keys, [block][query][head][V][V].
extern "C" __global__ void __launch_bounds__(WARPS * LANES, BLOCKS)
    query_gradient(const number* grad, const number* q, const number* k, const number* v,
                   const float* bias, const int* lengths, const number* deep,
                   const float* factors, const float* lse, const number* out, number* dq, float* delta, float* bias_gradient,
                   float* deep_gradient, int per_member, int queries, int keys, double scale,
                   double eps) {
  __shared__ Columns buffers[2];
  __shared__ float4 matrices[DEEP_UNITS];
  Place p = find_place(per_member);
  load_deep(matrices, deep, p.member);
  int length = LENGTHS && p.exists ? lengths[p.n] : keys;
  int query = min(p.row, queries - 1);
  bool exists = p.exists && p.row < queries;
  size_t token = (size_t)p.n * queries + query;
  float q_row[HL * D], grad_row[HL * V], dq_row[HL * D] = {}, lse_row[HL] = {}, delta_row[HL] = {};
  float ddeep[DEEP ? HL * V * V : 1] = {};
  load_heads<D>(q_row, q + token * PARTS * D, p.group, exists, (float)scale);
  load_heads<V>(grad_row, grad + token * PARTS * V, p.group, exists);
  if constexpr (NORMALISER == 2) {
    // lse = inf gives missing sequences the code 0; a large bias could make it infinite otherwise.
    if (exists) load_per_head(lse_row, lse + token * HEADS, p.group);
#pragma unroll
    for (int h = 0; h < HL; h++) lse_row[h] = exists ? lse_row[h] : INFINITE;
  }
  if constexpr (DELTA_OF_OUTPUT) {
    float out_row[HL * V];
    load_heads<V>(out_row, out + token * PARTS * V, p.group, exists);
#pragma unroll
    for (int h = 0; h < HL; h++) {
#pragma unroll
      for (int c = 0; c < V; c++) delta_row[h] += grad_row[h * V + c] * out_row[h * V + c];
      delta_row[h] = sum_over_slices(delta_row[h]);
    }
  }
  int last_row = min((int)(blockIdx.y + 1) * BLOCK_ROWS, queries) - 1;
  // Causally masked pairs have no gradient, but BIAS_GRADIENT must still write their zeros.
  int end = CAUSAL && !BIAS_GRADIENT ? last_row + keys - queries + 1 : keys;
  const float* member_bias = bias + (size_t)p.member * queries * keys * HEADS;
  const float* member_factors = factors + (size_t)p.member * queries * keys;
  auto copy_columns = [&](int start) {
    if (start < end) {
      Columns& to = buffers[start / CHUNK % 2];
      copy_tokens<D>(to.d, k, p, keys, start);
      copy_tokens<V>(to.v, v, p, keys, start);
      if constexpr (BIAS)
        copy_pairs<HEADS>(to.bias, member_bias, (size_t)keys * HEADS, queries, HEADS, keys, start);
      if constexpr (FACTORS) copy_pairs<1>(to.factors(), member_factors, keys, queries, 1, keys, start);
    }
    end_group_of_copies();
  };
#pragma unroll
  for (int pass = NORMALISER == 2 && !DELTA_OF_OUTPUT ? 0 : 1; pass < 2; pass++) {
    copy_columns(0);
    for (int start = 0; start < end; start += CHUNK) {
      copy_columns(start + CHUNK);
      wait_for_copies();
      const Columns& given = buffers[start / CHUNK % 2];
      int columns = min(CHUNK, end - start);
      for (int column = 0; column < columns; column++) {
        int key = start + column;
        float k_column[HL * D], v_column[HL * V], a[HL], da[HL], dz[V], dlast[V], z[V];
        read(k_column, given.d + (column * LANES + p.lane) * UNITS<D>);
        read(v_column, given.v + (column * LANES + p.lane) * UNITS<V>);
        Pair pair(given.bias + (column * BLOCK_ROWS + p.row % BLOCK_ROWS) * HEADS, p.group,
                  sees(queries, keys, query, key, length));
        scores(a, q_row, k_column, pair);
        float r = normalise(a, pair, lse_row, (float)eps);
        float f = given.factor(column, p.row);
        if constexpr (DEEP)
          deep_code_gradient(da, dz, dlast, z, a, v_column, grad_row, matrices + p.group * DEEP_LANE, f);
        else
          code_gradient(da, dz, a, v_column, grad_row, f);
        if (pass == 0) {
#pragma unroll
          for (int h = 0; h < HL; h++) delta_row[h] += a[h] * da[h];
          continue;
        }
        if constexpr (DEEP) {
#pragma unroll
          for (int h = 0; h < HL; h++)
#pragma unroll
            for (int u = 0; u < V; u++)
#pragma unroll
              for (int c = 0; c < V; c++) ddeep[(h * V + u) * V + c] += a[h] * dlast[u] * z[c];
        }
        score_gradient(da, a, pair, r, (float)eps, delta_row);
#pragma unroll
        for (int h = 0; h < HL; h++)
#pragma unroll
          for (int d = 0; d < D; d++) dq_row[h * D + d] += da[h] * k_column[h * D + d];
        if (BIAS_GRADIENT && p.row < queries)
          add_over_sequences(bias_gradient + (((size_t)blockIdx.x * queries + query) * keys + key) * HEADS,
                             da, p.lane);
      }
      __syncthreads();
    }
  }
  if constexpr (DEEP) {
    float* out = deep_gradient + ((size_t)blockIdx.x * queries + query) * HEADS * V * V + p.group * HL * V * V;
#pragma unroll
    for (int i = 0; i < HL * V * V; i++) {
#pragma unroll
      for (int step = GROUP; step < LANES; step *= 2) ddeep[i] += __shfl_xor_sync(0xffffffffu, ddeep[i], step);
      bool writes = p.lane < GROUP && p.row < queries && p.group * HL * V * V + i < HEADS * V * V;
      if (writes) out[i] = ddeep[i];
    }
  }
  if (!exists) return;
  store_heads<D>(dq + token * PARTS * D, dq_row, p.group, (float)scale);
  if constexpr (NORMALISER == 2) {
#pragma unroll
    for (int h = 0; h < HL; h++)
      if (first_head(p.group) + h < HEADS) delta[token * HEADS + first_head(p.group) + h] = delta_row[h];
  }
}

#else
// dk and dv: rows are keys, columns queries.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, BLOCKS)
    key_gradient(const number* grad, const number* q, const number* k, const number* v,
                 const float* bias, const int* lengths, const number* deep,
                 const float* factors, const float* lse, const float* delta, number* dk, number* dv, int per_member, int queries, int keys,
                 double scale, double eps) {
  __shared__ Columns buffers[2];
  __shared__ float4 matrices[DEEP_UNITS];
  Place p = find_place(per_member);
  load_deep(matrices, deep, p.member);
  int length = LENGTHS && p.exists ? lengths[p.n] : keys;
  int key = min(p.row, keys - 1);
  bool exists = p.exists && p.row < keys;
  size_t token = (size_t)p.n * keys + key;
  float k_row[HL * D], v_row[HL * V], dk_row[HL * D] = {}, dv_row[HL * V] = {};
  load_heads<D>(k_row, k + token * PARTS * D, p.group, exists, (float)scale);
  load_heads<V>(v_row, v + token * PARTS * V, p.group, exists);
  int first_key = blockIdx.y * BLOCK_ROWS;
  int begin = CAUSAL ? max(0, first_key - (keys - queries)) / CHUNK * CHUNK : 0;
  const float* member_bias = bias + (size_t)p.member * queries * keys * HEADS;
  const float* member_factors = factors + (size_t)p.member * queries * keys;
  auto copy_columns = [&](int start) {
    if (start < queries) {
      Columns& to = buffers[start / CHUNK % 2];
      copy_tokens<D>(to.d, q, p, queries, start);
      copy_tokens<V>(to.v, grad, p, queries, start);
      if constexpr (BIAS)
        copy_pairs<HEADS>(to.bias, member_bias, HEADS, keys, (size_t)keys * HEADS, queries, start);
      if constexpr (FACTORS) copy_pairs<1>(to.factors(), member_factors, 1, keys, keys, queries, start);
    }
    end_group_of_copies();
  };
  copy_columns(begin);
  for (int start = begin; start < queries; start += CHUNK) {
    copy_columns(start + CHUNK);
    wait_for_copies();
    const Columns& given = buffers[start / CHUNK % 2];
    int columns = min(CHUNK, queries - start);
    for (int column = 0; column < columns; column++) {
      int query = start + column;
      float q_column[HL * D], grad_column[HL * V], a[HL], da[HL], dz[V], lse_pair[HL], delta_pair[HL];
      float dlast[V], z[V];
      read(q_column, given.d + (column * LANES + p.lane) * UNITS<D>);
      read(grad_column, given.v + (column * LANES + p.lane) * UNITS<V>);
      if constexpr (NORMALISER == 2) {
        size_t at = ((size_t)(p.exists ? p.n : p.first) * queries + query) * HEADS;
        load_per_head(lse_pair, lse + at, p.group);
        load_per_head(delta_pair, delta + at, p.group);
      }
      Pair pair(given.bias + (column * BLOCK_ROWS + p.row % BLOCK_ROWS) * HEADS, p.group,
                sees(queries, keys, query, key, length));
      scores(a, q_column, k_row, pair);
      float r = normalise(a, pair, lse_pair, (float)eps);
      float f = given.factor(column, p.row);
      if constexpr (DEEP)
        deep_code_gradient(da, dz, dlast, z, a, v_row, grad_column, matrices + p.group * DEEP_LANE, f);
      else
        code_gradient(da, dz, a, v_row, grad_column, f);
      score_gradient(da, a, pair, r, (float)eps, delta_pair);
#pragma unroll
      for (int h = 0; h < HL; h++) {
#pragma unroll
        for (int d = 0; d < D; d++) dk_row[h * D + d] += da[h] * q_column[h * D + d];
#pragma unroll
        for (int c = 0; c < V; c++)
          dv_row[h * V + c] += a[h] * (MLP ? dz[c] : f * grad_column[h * V + c] * slope(v_row[h * V + c]));
      }
    }
    __syncthreads();
  }
  if (!exists) return;
  store_heads<D>(dk + token * PARTS * D, dk_row, p.group, (float)scale);
  store_heads<V>(dv + token * PARTS * V, dv_row, p.group);
}
#endif
