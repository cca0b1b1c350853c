// HYLA for long sequences with wide heads, on the tensor cores: 1024 tokens, 8 heads of size 64.
//
// Scores are a matrix product per head, z = sum_h a_h v_h one per key, the output one per query. A
// team of warps owns 8 rows (queries or keys) and processes 16 columns (the others) at a time: 8 x 16
// pairs. Its warps divide the heads among them to compute codes, then the columns, then the rows, and
// for gradients the columns again. Between these steps they exchange data through a patch of shared
// memory, with ldmatrix and stmatrix. Shared memory is the bottleneck: the warp that owns a row or a
// column reads its data once and completes its sums without other warps.
//
// One kernel serves all modes, because rows and columns are symmetric. For a pair (x, y), with the
// code a and the vectors of row x and column y,
//     P = sum_h a_h column_h,   R = sum_h a_h row_h   (vectors: v of a key, dout of a query)
// are z and dz/phi'(z) if rows are queries, and the other way round if rows are keys. From them
//     u, w = phi(P), R phi'(P)   or   P phi'(R), phi(R)
// belong to the row and to the column. Then
//     MODE 0  rows are queries  out_h = sum_y a_h u
//     MODE 1  rows are queries  da_h = row_h u + column_h w, from it ds_h, dq_h = sum_y ds_h k_h
//     MODE 2  rows are keys     the same with dk_h = sum_y ds_h q_h, and dv_h = sum_y a_h u
//     MODE 3  rows are keys     dv_h, and ds_h to memory
//     MODE 4  another kernel    dq_h and dk_h from there: plain products of matrices
// MODE 3 and 4 together compute all gradients, without the work that 1 and 2 both repeat; 1 and 2 need
// no memory for ds. z decides which units of the value network are active. Where it does, the code is
// split into a rounded number and a remainder, which makes z nearly as exact as in float32.
//
// The host defines: MODE, HEADS (at most 16), SIZE (of a head: 32, 64), NORMALISER (0 none,
// 1 rms_head), RELU, CAUSAL, LENGTHS, TYPE (1 bfloat16, 2 float16), TEAMS (per block), BLOCKS (per
// multiprocessor), BUFFERS (1, or 2 to load a tile of columns while computing with another).

typedef unsigned short number;

constexpr int LANES = 32, ROWS = 8, COLUMNS = 16, PAIRS = ROWS * COLUMNS;
constexpr int HEAD_BLOCKS = (HEADS + 7) / 8;   // of 8 heads, padded with zeros
constexpr int CHUNKS = HEAD_BLOCKS * SIZE;     // per token, of 16 bytes or 8 numbers
constexpr int D_BLOCKS = SIZE / 16;            // of 16 numbers of a head, processed together
constexpr int TEAM = 2 * HEAD_BLOCKS < D_BLOCKS ? 2 * HEAD_BLOCKS : D_BLOCKS;  // warps
constexpr int OWN_HEADS = HEAD_BLOCKS * 8 / TEAM, OWN_ROWS = ROWS / TEAM, OWN_COLUMNS = COLUMNS / TEAM;
[[maybe_unused]] constexpr int TILE_ROWS = 128, TILE_COLUMNS = 64;  // of MODE 4, 32 rows per warp
constexpr int THREADS = (MODE == 4 ? TILE_ROWS / 32 : TEAMS * TEAM) * LANES;
constexpr bool KEYS = MODE >= 2;               // rows are keys
constexpr bool VALUES = MODE != 1;             // sums over a_h u
constexpr bool SCORES = MODE != 0;             // gradients of scores: need P and R, and a split code
constexpr bool SUMS = MODE == 1 || MODE == 2;  // sums over ds_h
// Whether there are enough registers to hold the rows, which saves shared memory.
constexpr bool KEEP = !SUMS && THREADS * BLOCKS <= 12 * LANES;

struct alignas(16) Chunk { unsigned word[4]; };

#ifdef __CUDA_ARCH__
typedef unsigned Address;  // in shared memory
__device__ inline Address address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#endif

constexpr int HEAD_STEP = ROWS * 2 + 1;  // chunks of a head in ds, padded against bank conflicts
constexpr int COLUMN_STEP = HEAD_BLOCKS * PAIRS / 4 + 2;  // float2s of a column in da, also padded

// Shared memory of one team. code: [part][head block][y][x], patch: [8 numbers of a head][y][x].
struct alignas(128) Own {
  Chunk code[(SCORES ? 2 : 1) * HEAD_BLOCKS * PAIRS];
  Chunk patch[SIZE / 8 * PAIRS];  // before the first tile: the rows, if they are kept in registers
  float squares[TEAM][PAIRS];
  float factor[SCORES ? PAIRS : 32];
  float2 da[SCORES ? COLUMNS * COLUMN_STEP : 16];  // of the rows: [y][head][x / 2]
  Chunk row[KEEP ? 8 : ROWS * CHUNKS];
  Chunk values[SCORES && !KEEP ? ROWS * CHUNKS : 8];
  Chunk ds[SUMS ? HEAD_BLOCKS * 8 * HEAD_STEP : 8];  // [head][x][y]
};

#if MODE < 4
struct alignas(128) Shared {
  Chunk column[BUFFERS][COLUMNS * CHUNKS], values[BUFFERS][COLUMNS * CHUNKS];
  Own own[TEAMS];
};
#else
struct alignas(128) Shared {
  Chunk ds[2][TILE_ROWS * TILE_COLUMNS / 8], vectors[2][TILE_COLUMNS * SIZE / 8];
};
#endif

struct Warp {  // the position of a thread
  int lane, member, team;  // member: the number of the warp in its team
  __device__ int row() const { return member * OWN_ROWS; }
  __device__ int column() const { return member * OWN_COLUMNS; }
};

// Index of the 16 bytes of pair (y, x): neither 8 rows of one y nor 8 columns of one x share a bank.
__device__ inline int slot(int y, int x) { return (y * ROWS | y & 7) ^ x; }

// slot(y, x) relative to a first slot, for constant x and y: one instruction. The array must be aligned
// to 128 bytes. The first x and x must have no bit in common, nor the first y and y.
__device__ inline Address at_row(Address first, int x) { return first ^ x * 16; }
__device__ inline Address at_column(Address first, int y) { return (first ^ (y & 7) * 16) + y * ROWS * 16; }

// Index of chunk c of head h, laid out for reading 8 tokens (queries, keys) or 8 heads at a time.
__device__ inline int by_token(int token, int h, int c) {
  return token * CHUNKS + (h * (SIZE / 8) + c ^ token & 7);
}
__device__ inline int by_head(int token, int h, int c) {
  int chunk = h * (SIZE / 8) + c;
  return token * CHUNKS + (chunk ^ chunk >> 3 & 7);
}

#ifdef __CUDA_ARCH__
__device__ inline void copy(Chunk* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from),
               "r"(exists ? 16 : 0));
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four or two 8 x 8 matrices; lane 8 i + j gives the address of row j (16 bytes) of matrix i. Lane 4 i +
// j gets row i, columns 2 j and 2 j + 1; if transposed, column i, rows 2 j and 2 j + 1.
__device__ inline void load(unsigned (&m)[4], Address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row));
}
__device__ inline void load(unsigned (&m)[2], Address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(m[0]), "=r"(m[1]) : "r"(row));
}
__device__ inline void load_transposed(unsigned (&m)[2], Address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(m[0]), "=r"(m[1]) : "r"(row));
}
__device__ inline void load_transposed(unsigned (&m)[4], Address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row));
}
__device__ inline void store(Address row, const unsigned (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]));
}
__device__ inline void store_transposed(Address row, const unsigned (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]));
}

__device__ inline unsigned transpose(unsigned m) {
  unsigned turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(m));
  return turned;
}
__device__ inline void wait_for_team(const Warp& warp) {
  asm volatile("bar.sync %0, %1;" ::"r"(warp.team + 1), "n"(TEAM * LANES) : "memory");
}

// Hides the value of a number from the compiler. Otherwise it keeps all addresses derived from it in
// registers for the next tile, and has too few left for sums.
__device__ inline int forget(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

#if TYPE == 1
#define NUMBER "bf16"
#else
#define NUMBER "f16"
#endif
// c += a b, 16 x 8: lane 4 i + j holds rows i and i + 8, columns 2 j and 2 j + 1 of c.
__device__ inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." NUMBER "." NUMBER ".f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same, summing over 8 instead of 16.
__device__ inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." NUMBER "." NUMBER ".f32 {%0, %1, %2, %3}, "
      "{%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b));
}
// c = a b: saves the four instructions that would clear c.
__device__ inline void product(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                               unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." NUMBER "." NUMBER ".f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}
__device__ inline void product(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." NUMBER "." NUMBER ".f32 {%0, %1, %2, %3}, "
      "{%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]) : "r"(a0), "r"(a1), "r"(b), "f"(0.f));
}
// Rounds two numbers, the first into the lower half.
__device__ inline unsigned pack(float low, float high) {
  unsigned both;
  asm("cvt.rn." NUMBER "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ inline unsigned pack_relu(float low, float high) {
  unsigned both;
  asm("cvt.rn.relu." NUMBER "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// Sets all bits of each half that is above 0, given two nonnegative numbers: the addition sets the sign
// bit of nonzero halves, and prmt replicates it.
__device__ inline unsigned positive_halves(unsigned both) {
  unsigned mask;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(mask) : "r"(both + 0x7fff7fffu));
  return mask;
}
__device__ inline float widen(number x) {
#if TYPE == 1
  return __uint_as_float((unsigned)x << 16);
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
  return wide;
#endif
}
#endif

__device__ inline float low(unsigned both) { return widen((number)both); }
__device__ inline float high(unsigned both) { return widen((number)(both >> 16)); }
__device__ inline unsigned pack_phi(float low, float high) { return RELU ? pack_relu(low, high) : pack(low, high); }

// Operands of a product over heads, 16 x heads and heads x 8.
typedef unsigned Left[2 * HEAD_BLOCKS];
typedef unsigned Right[HEAD_BLOCKS];
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
  multiply(c, a[0], a[1], b[0]);
}
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply(c, a[0], a[1], a[2], a[3], b[0], b[1]);
}
__device__ inline void product(float (&c)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
  product(c, a[0], a[1], b[0]);
}
__device__ inline void product(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  product(c, a[0], a[1], a[2], a[3], b[0], b[1]);
}

// Copies TOKENS tokens from `start` with STEP threads, zero beyond the end. CHUNKS is a multiple of STEP
// or STEP of CHUNKS, so a thread always copies the same chunk of a token, or the same token offset.
template <int TOKENS, int STEP, bool BY_HEAD>
__device__ inline void copy_tokens(Chunk* to, const number* x, int start, int tokens, int thread) {
  thread = forget(thread);
#pragma unroll
  for (int i = 0; i < TOKENS * CHUNKS; i += STEP) {
    int token = i / CHUNKS + thread / CHUNKS, chunk = i % CHUNKS + thread % CHUNKS;
    int h = chunk / (SIZE / 8), c = chunk % (SIZE / 8);
    if (TOKENS * CHUNKS % STEP && token >= TOKENS) break;
    bool exists = start + token < tokens && h < HEADS;
    const number* from = exists ? x + ((start + token) * HEADS * SIZE + chunk * 8) : x;
    copy(to + (BY_HEAD ? by_head(token, h, c) : by_token(token, h, c)), from, exists);
  }
}

struct Pairs {  // position of the pairs of a warp and tile
  int row, column, queries, keys, length;
  __device__ bool seen(int x, int y) const {
    int query = KEYS ? column + y : row + x, key = KEYS ? row + x : column + y;
    return query < queries && key < keys && (!LENGTHS || key < length) &&
           (!CAUSAL || key <= query + keys - queries);
  }
};

// The score vectors of the rows, for the heads of this warp.
__device__ inline void load_rows(unsigned (&row)[OWN_HEADS][SIZE / 8], const Chunk* rows, const Warp& warp) {
#pragma unroll
  for (int i = 0; i < OWN_HEADS * SIZE / 32; i++) {
    int h = i / (SIZE / 32), d = i % (SIZE / 32) * 4;
    unsigned m[4];
    load(m, address(rows + by_token(warp.lane % 8, warp.member * OWN_HEADS + h, d + warp.lane / 8)));
#pragma unroll
    for (int j = 0; j < 4; j++) row[h][d + j] = m[j];
  }
}

// 16 components d of the vectors of row x, for R and for da.
struct RowValues {
  Right mixing[2];
  unsigned gradient[HEAD_BLOCKS][2];

  __device__ void load_from(const Chunk* values, int x, int d, int lane) {
    int i = lane / 8, h = lane % 8;
    unsigned m[2 * HEAD_BLOCKS];
    load_transposed(m, address(values + by_head(x, i % HEAD_BLOCKS * 8 + h, d * 2 + i / HEAD_BLOCKS % 2)));
#pragma unroll
    for (int j = 0; j < 2 * HEAD_BLOCKS; j++) mixing[j / HEAD_BLOCKS][j % HEAD_BLOCKS] = m[j];
    load(m, address(values + by_head(x, i / 2 % HEAD_BLOCKS * 8 + h, d * 2 + i % 2)));
#pragma unroll
    for (int j = 0; j < 2 * HEAD_BLOCKS; j++) gradient[j / 2][j % 2] = m[j];
  }
};

// The codes of 8 x 16 pairs, split if SCORES, and the factors of RMSHead, 0 for masked pairs.
__device__ inline void make_codes(Own& own, const unsigned (&row)[OWN_HEADS][SIZE / 8], const Chunk* column,
                                  const Pairs& pairs, float scale, float eps, const Warp& warp) {
  int lane = warp.lane, first_head = warp.member * OWN_HEADS;
  float s[OWN_HEADS][4] = {}, squares[4] = {}, r[4] = {1.f, 1.f, 1.f, 1.f};
#pragma unroll
  for (int h = 0; h < OWN_HEADS; h++) {
#pragma unroll
    for (int d = 0; d < SIZE / 8; d += 2) {
      unsigned a[4];
      load(a, address(column + by_token(lane % 16, first_head + h, d + lane / 16)));
      multiply(s[h], a[0], a[1], a[2], a[3], row[h][d], row[h][d + 1]);
    }
  }
  // Entry i of a product belongs to column y, row x:
  auto y = [&](int i) { return lane / 4 + i / 2 * 8; };
  auto x = [&](int i) { return lane % 4 * 2 + i % 2; };
  bool seen[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    seen[i] = pairs.seen(x(i), y(i));
#pragma unroll
    for (int h = 0; h < OWN_HEADS; h++) {
      s[h][i] = seen[i] ? s[h][i] * scale : 0.f;
      squares[i] += s[h][i] * s[h][i];
    }
  }
  if constexpr (NORMALISER == 1) {
#pragma unroll
    for (int i = 0; i < 4; i += 2)
      *(float2*)(own.squares[warp.member] + y(i) * ROWS + x(i)) = {squares[i], squares[i + 1]};
    wait_for_team(warp);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      float total[2] = {};
#pragma unroll
      for (int member = 0; member < TEAM; member++) {
        float2 part = *(const float2*)(own.squares[member] + y(i) * ROWS + x(i));
        total[0] += part.x, total[1] += part.y;
      }
      r[i] = rsqrtf(total[0] / HEADS + eps), r[i + 1] = rsqrtf(total[1] / HEADS + eps);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (SCORES && warp.member == 0 && i % 2 == 0)
      *(float2*)(own.factor + y(i) * ROWS + x(i)) = {seen[i] ? r[i] : 0.f, seen[i + 1] ? r[i + 1] : 0.f};
#pragma unroll
    for (int h = 0; h < OWN_HEADS; h += 4) {
      float a[4] = {s[h][i] * r[i], s[h + 1][i] * r[i], s[h + 2][i] * r[i], s[h + 3][i] * r[i]};
      uint2 rounded = {pack(a[0], a[1]), pack(a[2], a[3])};
      int head = first_head + h;
      uint2* to = (uint2*)(own.code + head / 8 * PAIRS + slot(y(i), x(i))) + head / 4 % 2;
      *to = rounded;
      if constexpr (SCORES)
        to[2 * HEAD_BLOCKS * PAIRS] = {pack(a[0] - low(rounded.x), a[1] - high(rounded.x)),
                                       pack(a[2] - low(rounded.y), a[3] - high(rounded.y))};
    }
  }
  wait_for_team(warp);
}

// Stores P of this warp's columns in the patch; phi(P) if rows are queries. A warp issues in order, so
// four columns are loaded before waiting for the first.
__device__ inline void mix_columns(Own& own, const Chunk* values, const Warp& warp) {
  constexpr bool EXACT = SCORES && !KEYS;  // P is z, which decides which units are active
  constexpr int PARTS = EXACT ? 2 : 1, STEP = 4 / HEAD_BLOCKS / PARTS, VALUE_STEP = 2 / HEAD_BLOCKS;
  int lane = warp.lane, i = lane / 8, first_column = warp.column();
  Address code = address(own.code + i % (HEAD_BLOCKS * PARTS) * PAIRS +
                         slot(first_column + i / (HEAD_BLOCKS * PARTS), lane % 8));
  Address place = address(own.patch + i % 2 * PAIRS + slot(first_column + i / 2, lane % 8));
#pragma unroll
  for (int y = 0; y < OWN_COLUMNS; y += 4) {
    Right codes[4][PARTS];
#pragma unroll
    for (int column = 0; column < 4; column += STEP) {
      unsigned m[4];
      load(m, at_column(code, y + column));
#pragma unroll
      for (int j = 0; j < 4; j++)
        codes[column + j / HEAD_BLOCKS / PARTS][j / HEAD_BLOCKS % PARTS][j % HEAD_BLOCKS] = m[j];
    }
    Left v[2][4];
    auto load_values = [&](int d) {
#pragma unroll
      for (int column = 0; column < 4; column += VALUE_STEP) {
        unsigned m[4];
        load_transposed(m, address(values + by_head(first_column + y + column + i / 2 / HEAD_BLOCKS,
                                                    i / 2 % HEAD_BLOCKS * 8 + lane % 8, d * 2 + i % 2)));
#pragma unroll
        for (int j = 0; j < 4; j++) v[d % 2][column + j / 2 / HEAD_BLOCKS][j % (2 * HEAD_BLOCKS)] = m[j];
      }
    };
    load_values(0);
#pragma unroll
    for (int d = 0; d < D_BLOCKS; d++) {  // load the next values meanwhile
      unsigned packed[2][4];
      if (d + 1 < D_BLOCKS) load_values(d + 1);
#pragma unroll
      for (int column = 0; column < 4; column++) {
        float p[4];
        product(p, v[d % 2][column], codes[column][0]);
        if constexpr (EXACT) multiply(p, v[d % 2][column], codes[column][PARTS - 1]);
#pragma unroll
        for (int half = 0; half < 2; half++)
          packed[column / 2][column % 2 * 2 + half] =
              KEYS ? pack(p[2 * half], p[2 * half + 1]) : pack_phi(p[2 * half], p[2 * half + 1]);
      }
      store_transposed(at_column(place, y) + d * 2 * PAIRS * 16, packed[0]);
      store_transposed(at_column(place, y + 2) + d * 2 * PAIRS * 16, packed[1]);
    }
  }
}

// The code of a row, for R (with its remainder `rest` if R is z) and for a sum over columns.
struct RowCode {
  Left rounded, rest;
  unsigned turned[HEAD_BLOCKS][2];

  __device__ RowCode(Address first) {
    unsigned m[4], t[2 * HEAD_BLOCKS];
    if constexpr (SCORES) {
      if constexpr (HEAD_BLOCKS == 2) {
        load(rounded, first);
        if constexpr (KEYS) load(rest, first + HEAD_BLOCKS * PAIRS * 16);
      } else if constexpr (KEYS) {
        load(m, first);
        rounded[0] = m[0], rounded[1] = m[1], rest[0] = m[2], rest[1] = m[3];
      } else {
        load(rounded, first);
      }
    }
    if constexpr (VALUES) {
      load_transposed(t, first);
#pragma unroll
      for (int j = 0; j < 2 * HEAD_BLOCKS; j++) turned[j / 2][j % 2] = t[j];
    }
  }
};

// Index, within a column, of da of two rows x and a head; neither writes nor reads conflict in a bank.
__device__ inline int in_da(int block, int h, int x) { return (block * 8 + h) * 4 + (x / 2 ^ h / 4); }

// For the rows of this warp: adds to out or dv, sum_y a_h u; computes da_h = row_h u; and replaces P in
// the patch by w. Two rows at a time hide latency.
__device__ inline void use_rows(float (&sums)[OWN_ROWS][D_BLOCKS][HEAD_BLOCKS][4], Own& own,
                                const RowValues (&kept)[OWN_ROWS][D_BLOCKS], const Warp& warp) {
  int lane = warp.lane;
  Address code = address(own.code + lane / 16 * PAIRS + slot(lane % 16, warp.row()));
  Address place = address(own.patch + lane / 16 * PAIRS + slot(lane % 16, warp.row()));
  // The same, transposed: the components of a head are the rows of the matrix.
  Address turned_place = address(own.patch + lane / 8 % 2 * PAIRS + slot(lane % 8 + lane / 16 * 8, warp.row()));
#pragma unroll
  for (int x = 0; x < OWN_ROWS; x += 2) {
    RowCode codes[2] = {at_row(code, x), at_row(code, x + 1)};
    float da[2][HEAD_BLOCKS][4] = {};
#pragma unroll
    for (int d = 0; d < D_BLOCKS; d++) {
      unsigned u[2][4], w[2][4];
      RowValues v[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if constexpr (SCORES) load(u[i], at_row(place, x + i) + d * 2 * PAIRS * 16);
        else load_transposed(u[i], at_row(turned_place, x + i) + d * 2 * PAIRS * 16);
        if constexpr (SCORES && KEEP) v[i] = kept[x + i][d];
        if constexpr (SCORES && !KEEP) v[i].load_from(own.values, warp.row() + x + i, d, lane);
      }
      if constexpr (SCORES) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
          for (int half = 0; half < 2; half++) {
            float r[4];
            product(r, codes[i].rounded, v[i].mixing[half]);
            if constexpr (KEYS) multiply(r, codes[i].rest, v[i].mixing[half]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
              int at = 2 * half + j;
              w[i][at] = KEYS ? pack_phi(r[2 * j], r[2 * j + 1]) : pack(r[2 * j], r[2 * j + 1]);
              if constexpr (RELU && !KEYS) w[i][at] &= positive_halves(u[i][at]);
              if constexpr (RELU && KEYS) u[i][at] &= positive_halves(w[i][at]);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          store(at_row(place, x + i) + d * 2 * PAIRS * 16, w[i]);
#pragma unroll
          for (int block = 0; block < HEAD_BLOCKS; block++)
            multiply(da[i][block], u[i], v[i].gradient[block]);
          if constexpr (VALUES) {
            unsigned m = transpose(u[i][1]);
            u[i][0] = transpose(u[i][0]), u[i][1] = transpose(u[i][2]), u[i][2] = m, u[i][3] = transpose(u[i][3]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2 && VALUES; i++)
#pragma unroll
        for (int block = 0; block < HEAD_BLOCKS; block++)
          multiply(sums[x + i][d][block], u[i], codes[i].turned[block]);
    }
    if constexpr (SCORES) {
#pragma unroll
      for (int i = 0; i < HEAD_BLOCKS * 4; i++) {
        int y = lane / 4 + i / 2 % 2 * 8, block = i / 4, h = lane % 4 * 2 + i % 2;
        own.da[y * COLUMN_STEP + in_da(block, h, warp.row() + x)] = {da[0][block][i % 4], da[1][block][i % 4]};
      }
    }
  }
}

// For the columns of this warp: da_h += column_h w, then the gradients of the scores, passed to
// emit(y, block of heads, gradients); a lane holds a head and two rows.
template <typename Emit>
__device__ inline void make_score_gradients(const Own& own, const Chunk* values, float eps, const Warp& warp,
                                            Emit emit) {
  int lane = warp.lane, i = lane / 8, first_column = warp.column();
  Address place = address(own.patch + i % 2 * PAIRS + slot(first_column + i / 2, lane % 8));
  Address code = address(own.code + i % (2 * HEAD_BLOCKS) * PAIRS +
                         slot(first_column + i / (2 * HEAD_BLOCKS), lane % 8));
#pragma unroll
  for (int y = 0; y < OWN_COLUMNS; y += 2) {
    // The upper half of a matrix holds 8 heads, the lower the next 8 or the next column.
    float c[2][4] = {};
#pragma unroll
    for (int d = 0; d < D_BLOCKS; d++) {
      unsigned w[4], v[2][4];
      load(w, at_column(place, y) + d * 2 * PAIRS * 16);
#pragma unroll
      for (int column = 0; column < HEAD_BLOCKS; column++)
        load(v[column], address(values + by_head(first_column + y + (HEAD_BLOCKS == 1 ? i % 2 : column),
                                                 i % HEAD_BLOCKS * 8 + lane % 8, d * 2 + i / 2)));
#pragma unroll
      for (int column = 0; column < 2; column++) {
        multiply(c[column], v[HEAD_BLOCKS == 1 ? 0 : column], {w[2 * column], w[2 * column + 1]});
      }
    }
    unsigned codes[2][2 * HEAD_BLOCKS];  // rounded, then the remainder
#pragma unroll
    for (int j = 0; j < HEAD_BLOCKS && NORMALISER == 1; j++) {
      unsigned m[4];
      load_transposed(m, at_column(code, y + j));
#pragma unroll
      for (int k = 0; k < 4; k++) codes[j + k / (2 * HEAD_BLOCKS)][k % (2 * HEAD_BLOCKS)] = m[k];
    }
#pragma unroll
    for (int column = 0; column < 2; column++) {
      float a[HEAD_BLOCKS][2], da[HEAD_BLOCKS][2], mean[2] = {};
      float2 factor = *(const float2*)(own.factor + (first_column + y + column) * ROWS + lane % 4 * 2);
#pragma unroll
      for (int block = 0; block < HEAD_BLOCKS; block++) {
        float2 of_row = own.da[(first_column + y + column) * COLUMN_STEP + in_da(block, lane / 4, lane % 4 * 2)];
        const float* of_column = c[column] + 2 * (HEAD_BLOCKS == 1 ? column : block);
        da[block][0] = of_row.x + of_column[0], da[block][1] = of_row.y + of_column[1];
        if constexpr (NORMALISER == 1) {
          unsigned rounded = codes[column][block], rest = codes[column][HEAD_BLOCKS + block];
          a[block][0] = low(rounded) + low(rest), a[block][1] = high(rounded) + high(rest);
          mean[0] += a[block][0] * da[block][0], mean[1] += a[block][1] * da[block][1];
        }
      }
#pragma unroll
      for (int e = 0; e < 2 && NORMALISER == 1; e++) {
#pragma unroll
        for (int step = 4; step < LANES; step *= 2) mean[e] += __shfl_xor_sync(0xffffffffu, mean[e], step);
        mean[e] /= HEADS;
      }
#pragma unroll
      for (int block = 0; block < HEAD_BLOCKS; block++) {
        float ds[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float r = e ? factor.y : factor.x;
          // With a single head, a is close to +-1: da - a mean would cancel to rounding errors.
          ds[e] = NORMALISER == 0 ? r * da[block][e]
                  : HEADS == 1    ? r * r * r * eps * da[block][e]
                                  : r * (da[block][e] - a[block][e] * mean[e]);
        }
        emit(y + column, block, ds);
      }
    }
  }
}

// dq or dk of one head: sum_y ds_h column_h.
__device__ inline void add_scores(float (&sum)[D_BLOCKS][4], const Own& own, const Chunk* column, int h, int lane) {
  unsigned ds[2];
  load(ds, address(own.ds + h * HEAD_STEP + lane % 8 * 2 + lane / 8 % 2));
#pragma unroll
  for (int d = 0; d < D_BLOCKS; d++) {
    unsigned k[4];
    load_transposed(k, address(column + by_token(lane % 8 + lane / 16 * 8, h, d * 2 + lane / 8 % 2)));
    multiply(sum[d], k[0], k[1], k[2], k[3], ds[0], ds[1]);
  }
}

#if MODE < 4
// row, column: q and k; row_values, column_values: dout and v; swapped for KEYS.
// blockIdx.x counts sequences first: with a causal mask, the rows with the most columns start first.
// MODE 3: score_sums is ds [sequence][head][query][key], keys padded to a multiple of 8; written only
// for pairs that are computed.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    wide(const number* row, const number* column, const number* row_values, const number* column_values,
         const int* lengths, number* value_sums, number* score_sums, int sequences, int queries, int keys,
         double scale, double eps) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(128) Chunk memory[];
#else
  alignas(128) static Chunk memory[sizeof(Shared) / sizeof(Chunk)];
#endif
  Shared& shared = *(Shared*)memory;
  Warp warp = {(int)threadIdx.x % LANES, (int)threadIdx.x / LANES % TEAM, (int)threadIdx.x / LANES / TEAM};
  int lane = warp.lane, rows = KEYS ? keys : queries, columns = KEYS ? queries : keys;
  int n = blockIdx.x % sequences, order = blockIdx.x / sequences;
  int blocks = (rows + TEAMS * ROWS - 1) / (TEAMS * ROWS);
  int first_row = (KEYS ? order : blocks - 1 - order) * TEAMS * ROWS;
  Own& own = shared.own[warp.team];
  Pairs pairs = {first_row + warp.team * ROWS, 0, queries, keys, LENGTHS ? lengths[n] : keys};

  size_t row_token = (size_t)n * rows, column_token = (size_t)n * columns;
  row += row_token * HEADS * SIZE, row_values += row_token * HEADS * SIZE;
  column += column_token * HEADS * SIZE, column_values += column_token * HEADS * SIZE;
  int begin = 0, end = columns;
  if (CAUSAL && KEYS) begin = max(0, first_row - (keys - queries)) / COLUMNS * COLUMNS;
  if (CAUSAL && !KEYS) end = min(keys, first_row + TEAMS * ROWS + keys - queries);
  if (LENGTHS && !KEYS) end = min(end, pairs.length);

  auto copy_columns = [&](int start) {
    if (start >= end) return;
    int buffer = start / COLUMNS % BUFFERS;
    copy_tokens<COLUMNS, THREADS, false>(shared.column[buffer], column, start, columns, threadIdx.x);
    copy_tokens<COLUMNS, THREADS, true>(shared.values[buffer], column_values, start, columns, threadIdx.x);
  };
  if (BUFFERS == 2) copy_columns(begin);

  float values[OWN_ROWS][D_BLOCKS][HEAD_BLOCKS][4] = {}, scores[OWN_HEADS][D_BLOCKS][4] = {};
  unsigned own_rows[OWN_HEADS][SIZE / 8];
  RowValues own_values[OWN_ROWS][D_BLOCKS];
  int thread = threadIdx.x % (TEAM * LANES);
  copy_tokens<ROWS, TEAM * LANES, false>(KEEP ? own.patch : own.row, row, pairs.row, rows, thread);
  if constexpr (SCORES && !KEEP)
    copy_tokens<ROWS, TEAM * LANES, true>(own.values, row_values, pairs.row, rows, thread);
  if constexpr (KEEP) {
    wait_for_copies();
    wait_for_team(warp);
    load_rows(own_rows, own.patch, warp);
    if constexpr (SCORES) {
      wait_for_team(warp);
      copy_tokens<ROWS, TEAM * LANES, true>(own.patch, row_values, pairs.row, rows, thread);
      wait_for_copies();
      wait_for_team(warp);
#pragma unroll
      for (int i = 0; i < OWN_ROWS * D_BLOCKS; i++) {
        int x = i / D_BLOCKS, d = i % D_BLOCKS;
        own_values[x][d].load_from(own.patch, warp.row() + x, d, lane);
      }
    }
  }

  int padded_keys = (keys + 7) / 8 * 8;
  if constexpr (MODE == 3) score_sums += (size_t)n * HEADS * queries * padded_keys + pairs.row;

  for (int start = begin; start < end; start += COLUMNS) {
    if (BUFFERS == 1) {
      __syncthreads();
      copy_columns(start);
    }
    wait_for_copies();
    __syncthreads();
    if (BUFFERS == 2) copy_columns(start + COLUMNS);
    int buffer = start / COLUMNS % BUFFERS;
    const Chunk *tile = shared.column[buffer], *tile_values = shared.values[buffer];
    pairs.column = start;
    lane = warp.lane = forget(warp.lane);
    // Skip the tile if its last query precedes its first key.
    bool all_masked = CAUSAL && (KEYS ? pairs.row > start + COLUMNS - 1 + keys - queries
                                      : start > pairs.row + ROWS - 1 + keys - queries);
    if (all_masked) continue;
    if constexpr (!KEEP) load_rows(own_rows, own.row, warp);
    make_codes(own, own_rows, tile, pairs, (float)scale, (float)eps, warp);
    mix_columns(own, tile_values, warp);
    wait_for_team(warp);
    use_rows(values, own, own_values, warp);
    if constexpr (MODE == 3) {
      wait_for_team(warp);
      int first = start + warp.column();
      number* to = score_sums + (size_t)(lane / 4 * queries + first) * padded_keys + lane % 4 * 2;
      make_score_gradients(own, tile_values, (float)eps, warp, [&](int y, int block, const float (&ds)[2]) {
        if (first + y < queries && pairs.row < keys && block * 8 + lane / 4 < HEADS)
          *(unsigned*)(to + (size_t)(block * 8 * queries + y) * padded_keys) = pack(ds[0], ds[1]);
      });
    }
    if constexpr (SUMS) {
      wait_for_team(warp);
      float kept[HEAD_BLOCKS][2][OWN_COLUMNS];
      make_score_gradients(own, tile_values, (float)eps, warp, [&](int y, int block, const float (&ds)[2]) {
        kept[block][0][y] = ds[0], kept[block][1][y] = ds[1];
      });
#pragma unroll
      for (int i = 0; i < HEAD_BLOCKS * 2; i++) {
        int head = i / 2 * 8 + lane / 4, x = lane % 4 * 2 + i % 2;
        uint2* to = (uint2*)(own.ds + head * HEAD_STEP + x * 2) + warp.column() / 4;
        const float* d = kept[i / 2][i % 2];
#pragma unroll
        for (int y = 0; y < OWN_COLUMNS; y += 4) to[y / 4] = {pack(d[y], d[y + 1]), pack(d[y + 2], d[y + 3])};
      }
      wait_for_team(warp);
#pragma unroll
      for (int h = 0; h < OWN_HEADS; h++) add_scores(scores[h], own, tile, warp.member * OWN_HEADS + h, lane);
    }
  }

  auto write = [&](number* out, int x, int h, int d, float sum) {
    if (pairs.row + x < rows && h < HEADS)
      out[((row_token + pairs.row + x) * HEADS + h) * SIZE + d] = (number)pack(sum, 0.f);
  };
  if constexpr (VALUES) {
#pragma unroll
    for (int i = 0; i < OWN_ROWS * D_BLOCKS * HEAD_BLOCKS * 4; i++) {
      int e = i % 4, block = i / 4 % HEAD_BLOCKS, d = i / 4 / HEAD_BLOCKS % D_BLOCKS;
      int x = i / 4 / HEAD_BLOCKS / D_BLOCKS;
      write(value_sums, warp.row() + x, block * 8 + lane % 4 * 2 + e % 2, d * 16 + lane / 4 + e / 2 * 8,
            values[x][d][block][e]);
    }
  }
  if constexpr (SUMS) {
#pragma unroll
    for (int i = 0; i < OWN_HEADS * D_BLOCKS * 4; i++) {
      int e = i % 4, block = i / 4 % D_BLOCKS, h = i / 4 / D_BLOCKS;
      write(score_sums, lane % 4 * 2 + e % 2, warp.member * OWN_HEADS + h, block * 16 + lane / 4 + e / 2 * 8,
            scores[h][block][e] * (float)scale);
    }
  }
}
#else

// Index of chunk c of a row in a matrix with COUNT chunks per row: 8 rows do not share a bank.
template <int COUNT>
__device__ inline int in_row(int row, int c) { return row * COUNT + (COUNT < 8 ? c ^ row / 2 & 3 : c ^ row & 7); }

// dq = ds k, or dk = ds^T q, for TILE_ROWS queries or keys of head h of sequence n.
template <bool OF_KEYS>
__device__ inline void multiply_tiles(Shared& shared, const number* ds, const number* vectors, number* results,
                                      int n, int h, int first_row, int queries, int keys, float scale) {
  constexpr int CHUNKS_OF_DS = (OF_KEYS ? TILE_ROWS : TILE_COLUMNS) / 8;
  int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, padded_keys = (keys + 7) / 8 * 8;
  int rows = OF_KEYS ? keys : queries, columns = OF_KEYS ? queries : keys, begin = 0, end = columns;
  if (CAUSAL && OF_KEYS) begin = max(0, first_row - (keys - queries)) / TILE_COLUMNS * TILE_COLUMNS;
  if (CAUSAL && !OF_KEYS) end = min(keys, first_row + TILE_ROWS + keys - queries);
  vectors += ((size_t)n * columns * HEADS + h) * SIZE;
  results += ((size_t)n * rows * HEADS + h) * SIZE;
  ds += (size_t)(n * HEADS + h) * queries * padded_keys;

  auto copy_tiles = [&](int start) {
    int buffer = start / TILE_COLUMNS % 2, thread = forget(threadIdx.x);
    int first_query = OF_KEYS ? start : first_row, first_key = OF_KEYS ? first_row : start;
#pragma unroll
    for (int i = 0; i < TILE_ROWS * TILE_COLUMNS / 8; i += THREADS) {
      int row = (i + thread) / CHUNKS_OF_DS, c = thread % CHUNKS_OF_DS;
      int query = first_query + row, key = first_key + c * 8;
      // MODE 3 does not write tiles in which no query sees the first key; read them as 0.
      bool written = !CAUSAL || key - (keys - queries) < query / COLUMNS * COLUMNS + COLUMNS;
      bool exists = query < queries && key < keys && written;
      const number* from = exists ? ds + (query * padded_keys + key) : ds;
      copy(shared.ds[buffer] + in_row<CHUNKS_OF_DS>(row, c), from, exists);
    }
#pragma unroll
    for (int i = 0; i < TILE_COLUMNS * SIZE / 8; i += THREADS) {
      int row = (i + thread) / (SIZE / 8), c = thread % (SIZE / 8);
      bool exists = start + row < columns;
      const number* from = exists ? vectors + ((start + row) * HEADS * SIZE + c * 8) : vectors;
      copy(shared.vectors[buffer] + in_row<SIZE / 8>(row, c), from, exists);
    }
  };
  copy_tiles(begin);
  float sums[2][SIZE / 8][4] = {};
  for (int start = begin; start < end; start += TILE_COLUMNS) {
    wait_for_copies();
    __syncthreads();
    if (start + TILE_COLUMNS < end) copy_tiles(start + TILE_COLUMNS);
    const Chunk* tile_ds = shared.ds[start / TILE_COLUMNS % 2];
    const Chunk* tile_vectors = shared.vectors[start / TILE_COLUMNS % 2];
    lane = forget(lane);
#pragma unroll 2
    for (int i = 0; i < TILE_COLUMNS; i += 16) {
      unsigned a[2][4];
#pragma unroll
      for (int part = 0; part < 2; part++) {
        int row = warp * 32 + part * 16;
        if constexpr (OF_KEYS)
          load_transposed(a[part], address(tile_ds + in_row<CHUNKS_OF_DS>(i + lane / 16 * 8 + lane % 8,
                                                                          row / 8 + lane / 8 % 2)));
        else
          load(a[part], address(tile_ds + in_row<CHUNKS_OF_DS>(row + lane % 16, i / 8 + lane / 16)));
      }
#pragma unroll
      for (int d = 0; d < SIZE / 8; d += 2) {
        unsigned b[4];
        load_transposed(b, address(tile_vectors + in_row<SIZE / 8>(i + lane % 16, d + lane / 16)));
#pragma unroll
        for (int part = 0; part < 2; part++) {
          multiply(sums[part][d], a[part], {b[0], b[1]});
          multiply(sums[part][d + 1], a[part], {b[2], b[3]});
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * SIZE / 8; i++) {
    int row = first_row + warp * 32 + i % 4 * 8 + lane / 4, d = i / 4;
    const float* sum = sums[i % 4 / 2][d] + i % 2 * 2;
    unsigned* to = (unsigned*)(results + (size_t)row * HEADS * SIZE + d * 8) + lane % 4;
    if (row < rows) *to = pack(sum[0] * scale, sum[1] * scale);
  }
}

// blockIdx.x counts the tiles of a head first, so that they share ds in the cache.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    products(const number* ds, const number* q, const number* k, number* dq, number* dk, int queries, int keys,
             double scale) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(128) Chunk memory[];
#else
  alignas(128) static Chunk memory[sizeof(Shared) / sizeof(Chunk)];
#endif
  Shared& shared = *(Shared*)memory;
  int query_tiles = (queries + TILE_ROWS - 1) / TILE_ROWS;
  int tiles = query_tiles + (keys + TILE_ROWS - 1) / TILE_ROWS;
  int n = blockIdx.x / tiles / HEADS, h = blockIdx.x / tiles % HEADS, tile = blockIdx.x % tiles;
  if (tile < query_tiles)
    multiply_tiles<false>(shared, ds, k, dq, n, h, tile * TILE_ROWS, queries, keys, (float)scale);
  else
    multiply_tiles<true>(shared, ds, q, dk, n, h, (tile - query_tiles) * TILE_ROWS, queries, keys,
                         (float)scale);
}
#endif
