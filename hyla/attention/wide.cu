// HYLA for long sequences with wide heads, on the tensor cores: 1024 tokens, 8 heads of size 64.
//
// Scores are products for each head, z = sum_h a_h v_h one for each key, what becomes of it one for
// each query. A team of warps owns 8 rows (queries, or keys) and meets the others, the columns, 16
// at a time: 8 x 16 pairs. Its warps share the heads while they make codes and the gradients of
// queries and keys, and the numbers of a head while they apply the value network. Between products
// numbers change their places in a patch of shared memory, through ldmatrix and stmatrix.
//
// One kernel makes everything, because rows and columns are alike. For a pair (x, y), with the
// code a and the vectors of row x and column y,
//     P = sum_h a_h column_h,   R = sum_h a_h row_h   (vectors: v of a key, dout of a query)
// are z and dz/phi'(z) if rows are queries, and the other way round if rows are keys. From them
//     u, w = phi(P), R phi'(P)   or   P phi'(R), phi(R)
// belong to the row and to the column. Then
//     MODE 0  rows are queries  out_h = sum_y a_h u
//     MODE 1  rows are queries  da_h = row_h u + column_h w, from it ds_h, dq_h = sum_y ds_h k_h
//     MODE 2  rows are keys     the same with dk_h = sum_y ds_h q_h, and dv_h = sum_y a_h u
// z decides which units of the value network are on, so where it is used for that the code comes in
// two parts, a rounded number and the rest, and z is nearly as exact as in float32.
//
// The host defines: MODE, HEADS (at most 16), SIZE (of a head: 32, 64), NORMALISER (0 none,
// 1 rms_head), RELU, CAUSAL, LENGTHS, TYPE (1 bfloat16, 2 float16), TEAMS (in a block), BLOCKS
// (that share a multiprocessor), BUFFERS (1, or 2: a tile of columns arrives while one is used).

typedef unsigned short number;

constexpr int LANES = 32, ROWS = 8, COLUMNS = 16, PAIRS = ROWS * COLUMNS;
constexpr int HEAD_BLOCKS = (HEADS + 7) / 8;   // of 8 heads; missing heads are zeros
constexpr int CHUNKS = HEAD_BLOCKS * SIZE;     // of 16 bytes, 8 numbers, in a token
constexpr int D_BLOCKS = SIZE / 16;            // 16 numbers of a head are worked on together
constexpr int TEAM = 2 * HEAD_BLOCKS < D_BLOCKS ? 2 * HEAD_BLOCKS : D_BLOCKS;  // warps
constexpr int OWN_HEADS = HEAD_BLOCKS * 8 / TEAM, OWN_D_BLOCKS = D_BLOCKS / TEAM, OWN_COLUMNS = COLUMNS / TEAM;
constexpr int THREADS = TEAMS * TEAM * LANES;
constexpr bool KEYS = MODE == 2;               // rows are keys
constexpr bool VALUES = MODE != 1;             // sums over a_h u
constexpr bool SCORES = MODE != 0;             // gradients of scores: needs P and R, and a code in two parts

struct alignas(16) Chunk { unsigned word[4]; };

#ifdef __CUDA_ARCH__
typedef unsigned Address;  // in shared memory
__device__ inline Address address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#endif

// What a team has to itself. code: [part][head block][y][x], patch of a warp: [half of 16][y][x].
constexpr int HEAD_STEP = ROWS * 2 + 1;  // chunks of a head in ds; one to spare, against bank conflicts

struct alignas(128) Own {
  Chunk row[ROWS * CHUNKS];
  Chunk code[(SCORES ? 2 : 1) * HEAD_BLOCKS * PAIRS];
  Chunk patch[TEAM][(SCORES ? HEAD_BLOCKS : 1) * 2 * PAIRS];
  float squares[TEAM][PAIRS];
  Chunk values[SCORES ? ROWS * CHUNKS : 8];
  Chunk ds[SCORES ? HEAD_BLOCKS * 8 * HEAD_STEP : 8];  // [head][x][y]
  float factor[SCORES ? PAIRS : 32];
};

struct alignas(128) Shared {
  Chunk column[BUFFERS][COLUMNS * CHUNKS], values[BUFFERS][COLUMNS * CHUNKS];
  Own own[TEAMS];
};

struct Warp {  // where a thread stands
  int lane, member, team;  // member: the number of the warp in its team
};

// Where 16 bytes of pair (y, x) lie: neither 8 rows of one y nor 8 columns of one x share a bank.
__device__ inline int slot(int y, int x) { return (y * ROWS | y & 7) ^ x; }

// slot(y, x) from slot(0, x) or slot(y, 0), for the known one of both: one instruction. What is
// addressed so begins at a multiple of 128 bytes. y: a multiple of 2 (or 4); what is less of it is in
// the first slot, that of column 0 or 1 (or up to 3).
__device__ inline Address at_row(Address first, int x) { return first ^ x * 16; }
__device__ inline Address at_column(Address first, int y) { return (first ^ (y & 7) * 16) + y * ROWS * 16; }

// Where chunk c of head h lies, read for 8 tokens at a time (queries, keys), or for 8 heads.
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
__device__ inline void end_group_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// Four or two 8 x 8 matrices whose rows of 16 bytes begin where the lanes say, lane 8 i + j for row j
// of matrix i. Transposed: lane 4 i + j gets column i, rows 2 j and 2 j + 1, else the other way round.
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

// Makes the compiler forget what it knows of a number: else it keeps all addresses that follow from
// it in registers, for the next tile, and has none left for sums.
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
// The same with a sum over 8 instead of 16.
__device__ inline void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." NUMBER "." NUMBER ".f32 {%0, %1, %2, %3}, "
      "{%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b));
}
// c = a b: saves four instructions that make zeros.
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
// Two numbers rounded, the first in the lower half.
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
// All bits of each half that is above 0, of two numbers that are not below: adding sets the sign
// where one is not 0, and prmt copies signs.
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

// TOKENS tokens from `start`, zero where there are none, by STEP threads: CHUNKS is a multiple of STEP
// or STEP of CHUNKS, so that a thread has always the same chunk of a token, or token.
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

struct Pairs {  // where the pairs of a warp and tile stand
  int row, column, queries, keys, length;
  __device__ bool seen(int x, int y) const {
    int query = KEYS ? column + y : row + x, key = KEYS ? row + x : column + y;
    return query < queries && key < keys && (!LENGTHS || key < length) &&
           (!CAUSAL || key <= query + keys - queries);
  }
};

// The score vectors of the rows, for the heads of this warp.
__device__ inline void load_rows(unsigned (&row)[OWN_HEADS][SIZE / 8], const Own& own, const Warp& warp) {
#pragma unroll
  for (int i = 0; i < OWN_HEADS * SIZE / 32; i++) {
    int h = i / (SIZE / 32), d = i % (SIZE / 32) * 4;
    unsigned m[4];
    load(m, address(own.row + by_token(warp.lane % 8, warp.member * OWN_HEADS + h, d + warp.lane / 8)));
#pragma unroll
    for (int j = 0; j < 4; j++) row[h][d + j] = m[j];
  }
}

// The codes of 8 x 16 pairs, in two parts if SCORES, and the factors of RMSHead, 0 for a masked pair.
__device__ inline void make_codes(Own& own, const unsigned (&row)[OWN_HEADS][SIZE / 8], const Chunk* column,
                                  const Pairs& pairs, float scale, float eps, const Warp& warp) {
  int lane = warp.lane, first_head = warp.member * OWN_HEADS;
  float s[OWN_HEADS][4] = {}, squares[4] = {};
#pragma unroll
  for (int h = 0; h < OWN_HEADS; h++) {
#pragma unroll
    for (int d = 0; d < SIZE / 8; d += 2) {
      unsigned a[4];
      load(a, address(column + by_token(lane % 16, first_head + h, d + lane / 16)));
      multiply(s[h], a[0], a[1], a[2], a[3], row[h][d], row[h][d + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int y = lane / 4 + i / 2 * 8, x = lane % 4 * 2 + i % 2;
    bool seen = pairs.seen(x, y);
#pragma unroll
    for (int h = 0; h < OWN_HEADS; h++) {
      s[h][i] = seen ? s[h][i] * scale : 0.f;
      squares[i] += s[h][i] * s[h][i];
    }
    if constexpr (NORMALISER == 1) own.squares[warp.member][slot(y, x)] = squares[i];
  }
  if constexpr (NORMALISER == 1) wait_for_team(warp);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int y = lane / 4 + i / 2 * 8, x = lane % 4 * 2 + i % 2;
    float r = 1.f;
    if constexpr (NORMALISER == 1) {
      float total = 0.f;
#pragma unroll
      for (int member = 0; member < TEAM; member++) total += own.squares[member][slot(y, x)];
      r = rsqrtf(total / HEADS + eps);
    }
    if (SCORES && warp.member == 0) own.factor[slot(y, x)] = pairs.seen(x, y) ? r : 0.f;
#pragma unroll
    for (int h = 0; h < OWN_HEADS; h += 4) {
      float a[4] = {s[h][i] * r, s[h + 1][i] * r, s[h + 2][i] * r, s[h + 3][i] * r};
      uint2 rounded = {pack(a[0], a[1]), pack(a[2], a[3])};
      uint2* to = (uint2*)(own.code + (first_head + h) / 8 * PAIRS + slot(y, x)) + (first_head + h) / 4 % 2;
      *to = rounded;
      if constexpr (SCORES)
        to[2 * HEAD_BLOCKS * PAIRS] = {pack(a[0] - low(rounded.x), a[1] - high(rounded.x)),
                                       pack(a[2] - low(rounded.y), a[3] - high(rounded.y))};
    }
  }
  wait_for_team(warp);
}

// c = sum over heads of m and n, of which one is the rounded code; if EXACT, also with the rest of it
// in its place. m0, m1 are the upper and lower half of a 16 x 8 matrix for each block of heads.
// Products over 8, as the numbers lie: for those over 16 they would have to be copied together.
template <bool EXACT, bool CODE_LEFT>
__device__ inline void sum_over_heads(float (&c)[4], const unsigned (&m0)[HEAD_BLOCKS],
                                      const unsigned (&m1)[HEAD_BLOCKS], const unsigned (&n)[HEAD_BLOCKS],
                                      const unsigned (&rest0)[HEAD_BLOCKS],
                                      const unsigned (&rest1)[HEAD_BLOCKS]) {
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++) {
    if (block == 0) product(c, m0[0], m1[0], n[0]);
    else multiply(c, m0[block], m1[block], n[block]);
    if constexpr (EXACT && CODE_LEFT) multiply(c, rest0[block], rest1[block], n[block]);
    if constexpr (EXACT && !CODE_LEFT) multiply(c, m0[block], m1[block], rest0[block]);
  }
}

// The code of all columns, for a sum over heads.
struct ColumnCode {
  static constexpr bool EXACT = SCORES && !KEYS;  // P is z, and decides which units are on
  unsigned rounded[COLUMNS][HEAD_BLOCKS], rest[EXACT ? COLUMNS : 1][HEAD_BLOCKS];

  __device__ ColumnCode(const Own& own, int lane) {
    constexpr int STEP = EXACT ? 2 : 4;
    Address first = address(own.code + (EXACT ? lane / 16 * HEAD_BLOCKS * PAIRS : 0) + slot(lane / 8 % STEP, lane % 8));
#pragma unroll
    for (int i = 0; i < COLUMNS / STEP * HEAD_BLOCKS; i++) {
      int y = i / HEAD_BLOCKS * STEP, block = i % HEAD_BLOCKS;
      unsigned m[4];
      load(m, at_column(first, y) + block * PAIRS * 16);
#pragma unroll
      for (int j = 0; j < 4; j++) (j < STEP ? rounded[y + j] : rest[y + j - STEP])[block] = m[j];
    }
  }
};

// P of all columns, for 16 numbers of the vectors, to the patch; as phi(P) if rows are queries. A warp
// issues in order: four columns are loaded before it waits for the first.
__device__ inline void mix_columns(Chunk* patch, const ColumnCode& code, const Chunk* values, int d, int lane) {
  Address first = address(patch + lane / 8 % 2 * PAIRS + slot(lane / 16, lane % 8));
#pragma unroll
  for (int y = 0; y < COLUMNS; y += 4) {
    unsigned v0[4][HEAD_BLOCKS], v1[4][HEAD_BLOCKS], packed[2][4];
#pragma unroll
    for (int i = 0; i < 2 * HEAD_BLOCKS; i++) {
      int pair = i / HEAD_BLOCKS * 2, block = i % HEAD_BLOCKS;
      unsigned m[4];
      load_transposed(m, address(values + by_head(y + pair + lane / 16, block * 8 + lane % 8, d * 2 + lane / 8 % 2)));
      v0[pair][block] = m[0], v1[pair][block] = m[1], v0[pair + 1][block] = m[2], v1[pair + 1][block] = m[3];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float p[4];
      const unsigned(&rest)[HEAD_BLOCKS] = code.rest[code.EXACT ? y + i : 0];
      sum_over_heads<ColumnCode::EXACT, false>(p, v0[i], v1[i], code.rounded[y + i], rest, rest);
#pragma unroll
      for (int half = 0; half < 2; half++)
        packed[i / 2][i % 2 * 2 + half] =
            KEYS ? pack(p[2 * half], p[2 * half + 1]) : pack_phi(p[2 * half], p[2 * half + 1]);
    }
    store_transposed(at_column(first, y), packed[0]);
    store_transposed(at_column(first, y + 2), packed[1]);
  }
}

// The code of row x, the upper and lower 8 columns of it. first: slot(lane % 16, 0) of the code.
__device__ inline void load_row_code(unsigned (&rounded)[2][HEAD_BLOCKS], unsigned (&rest)[2][HEAD_BLOCKS],
                                     Address first, int x, int lane) {
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++) {
    Address code = at_row(first, x) + block * PAIRS * 16;
    if constexpr (KEYS) {  // R is z
      unsigned m[4];
      load(m, code + lane / 16 * HEAD_BLOCKS * PAIRS * 16);
      rounded[0][block] = m[0], rounded[1][block] = m[1], rest[0][block] = m[2], rest[1][block] = m[3];
    } else {
      unsigned m[2];
      load(m, code);
      rounded[0][block] = m[0], rounded[1][block] = m[1];
    }
  }
}

// The same, for a sum over columns.
__device__ inline void load_row_code(unsigned (&code)[HEAD_BLOCKS][2], Address first, int x) {
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++)
    load_transposed(code[block], at_row(first, x) + block * PAIRS * 16);
}

// out or dv: sum_y a_h u, for u as a 16 x 16 matrix of its numbers and columns.
__device__ inline void add_values(float (&sum)[HEAD_BLOCKS][4], const unsigned (&u)[4],
                                  const unsigned (&code)[HEAD_BLOCKS][2]) {
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++)
    multiply(sum[block], u[0], u[1], u[2], u[3], code[block][0], code[block][1]);
}

// da += row_h u, and w to the patch in the place of P. Returns u, as a matrix of columns and numbers.
// Of two rows, so that one has something to do while the other waits.
__device__ inline void add_row_gradients(float (&da)[ROWS][HEAD_BLOCKS][4], unsigned (&u)[2][4],
                                         Chunk* patch, const Own& own, int x, int d, int lane) {
  unsigned rounded[2][2][HEAD_BLOCKS], rest[2][2][HEAD_BLOCKS], v[2][2][HEAD_BLOCKS], p[2][4], w[2][4];
  Address code = address(own.code + slot(lane % 16, 0));
  Address place = address(patch + lane / 16 * PAIRS + slot(lane % 16, 0));
#pragma unroll
  for (int i = 0; i < 2; i++) {
    load_row_code(rounded[i], rest[i], code, x + i, lane);
#pragma unroll
    for (int block = 0; block < HEAD_BLOCKS; block++) {
      unsigned m[2];
      load_transposed(m, address(own.values + by_head(x + i, block * 8 + lane % 8, d * 2 + lane / 8 % 2)));
      v[i][0][block] = m[0], v[i][1][block] = m[1];
    }
    load(p[i], at_row(place, x + i));
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float r[4];
      sum_over_heads<KEYS, true>(r, rounded[i][0], rounded[i][1], v[i][half], rest[i][0], rest[i][1]);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int at = 2 * half + j;
        w[i][at] = KEYS ? pack_phi(r[2 * j], r[2 * j + 1]) : pack(r[2 * j], r[2 * j + 1]);
        u[i][at] = p[i][at];
        if constexpr (RELU && KEYS) u[i][at] &= positive_halves(w[i][at]);
        if constexpr (RELU && !KEYS) w[i][at] &= positive_halves(p[i][at]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int block = 0; block < HEAD_BLOCKS; block++) {
      unsigned m[2];
      load(m, address(own.values + by_head(x + i, block * 8 + lane % 8, d * 2 + lane / 8 % 2)));
      multiply(da[x + i][block], u[i][0], u[i][1], u[i][2], u[i][3], m[0], m[1]);
    }
    store(at_row(place, x + i), w[i]);
  }
}

// da += column_h w for two columns.
__device__ inline void add_column_gradient(float (&da)[COLUMNS][HEAD_BLOCKS][2], const Chunk* patch,
                                           const Chunk* values, int y, int d, int lane) {
  unsigned w[4];
  // The upper half of the matrix is of column y, the lower of the next: one of them counts each time.
  load(w, at_column(address(patch + lane / 16 * PAIRS + slot(lane / 8 % 2, lane % 8)), y));
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++) {
    unsigned v[4];
    load(v, address(values + by_head(y + lane / 16, block * 8 + lane % 8, d * 2 + lane / 8 % 2)));
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float c[4];
      product(c, w[0], w[1], w[2], w[3], v[2 * i], v[2 * i + 1]);
      da[y + i][block][0] += c[2 * i], da[y + i][block][1] += c[2 * i + 1];
    }
  }
}

// The gradients of the scores, from those of the code: each warp has these for all heads and
// columns, summed over its own numbers, and makes those for some of the columns.
__device__ inline void make_score_gradients(Own& own, const float (&da_row)[ROWS][HEAD_BLOCKS][4],
                                            const float (&da_column)[COLUMNS][HEAD_BLOCKS][2], float eps,
                                            const Warp& warp) {
  int lane = warp.lane;
  float2* mine = (float2*)own.patch[warp.member];
  __syncwarp();
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++)
#pragma unroll
    for (int x = 0; x < ROWS; x++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        mine[(block * PAIRS + slot(lane / 4 + 8 * i, x)) * 4 + lane % 4] = {da_row[x][block][2 * i], da_row[x][block][2 * i + 1]};
  __syncwarp();
  // From here on a lane holds a row and two heads.
#pragma unroll
  for (int block = 0; block < HEAD_BLOCKS; block++)
#pragma unroll
    for (int y = 0; y < COLUMNS; y++) {
      if (y / OWN_COLUMNS == warp.member) continue;  // added below
      float2& sum = mine[(block * PAIRS + slot(y, lane / 4)) * 4 + lane % 4];
      sum = {sum.x + da_column[y][block][0], sum.y + da_column[y][block][1]};
    }
  wait_for_team(warp);
  float ds[HEAD_BLOCKS][2][OWN_COLUMNS];
#pragma unroll
  for (int column = 0; column < OWN_COLUMNS; column++) {
    int at = slot(warp.member * OWN_COLUMNS + column, lane / 4);
    float a[HEAD_BLOCKS][2], da[HEAD_BLOCKS][2] = {}, mean = 0.f, r = own.factor[at];
#pragma unroll
    for (int block = 0; block < HEAD_BLOCKS; block++) {
#pragma unroll
      for (int member = 0; member < TEAM; member++) {
        float2 part = ((const float2*)own.patch[member])[(block * PAIRS + at) * 4 + lane % 4];
        da[block][0] += part.x, da[block][1] += part.y;
        if (member == warp.member) {
          const float(&rest)[2] = da_column[member * OWN_COLUMNS + column][block];
          da[block][0] += rest[0], da[block][1] += rest[1];
        }
      }
      if constexpr (NORMALISER == 1) {
        const Chunk* code = own.code + block * PAIRS + at;
        unsigned rounded = code->word[lane % 4], rest = code[HEAD_BLOCKS * PAIRS].word[lane % 4];
        a[block][0] = low(rounded) + low(rest), a[block][1] = high(rounded) + high(rest);
        mean += a[block][0] * da[block][0] + a[block][1] * da[block][1];
      }
    }
    if constexpr (NORMALISER == 1) {
      mean += __shfl_xor_sync(0xffffffffu, mean, 1);
      mean += __shfl_xor_sync(0xffffffffu, mean, 2);
      mean /= HEADS;
    }
#pragma unroll
    for (int i = 0; i < HEAD_BLOCKS * 2; i++)
      // Of a single head nothing but its sign is left: da - a mean would be rounding alone.
      ds[i / 2][i % 2][column] = NORMALISER == 0 ? r * da[i / 2][i % 2]
                                 : HEADS == 1    ? r * r * r * eps * da[i / 2][i % 2]
                                                 : r * (da[i / 2][i % 2] - a[i / 2][i % 2] * mean);
  }
#pragma unroll
  for (int i = 0; i < HEAD_BLOCKS * 2; i++) {
    int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
    uint2* to = (uint2*)(own.ds + head * HEAD_STEP + lane / 4 * 2) + warp.member * OWN_COLUMNS / 4;
    const float* d = ds[i / 2][i % 2];
#pragma unroll
    for (int y = 0; y < OWN_COLUMNS; y += 4) to[y / 4] = {pack(d[y], d[y + 1]), pack(d[y + 2], d[y + 3])};
  }
  wait_for_team(warp);
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

// row, column: q and k; row_values, column_values: dout and v; all the other way round for KEYS.
// blockIdx.x counts sequences first: with a causal mask, the rows with most columns begin first.
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
  Chunk* patch = own.patch[warp.member];
  Pairs pairs = {first_row + warp.team * ROWS, 0, queries, keys, LENGTHS ? lengths[n] : keys};

  size_t row_token = (size_t)n * rows, column_token = (size_t)n * columns;
  row += row_token * HEADS * SIZE, row_values += row_token * HEADS * SIZE;
  column += column_token * HEADS * SIZE, column_values += column_token * HEADS * SIZE;
  int begin = 0, end = columns;
  if (CAUSAL && KEYS) begin = max(0, first_row - (keys - queries)) / COLUMNS * COLUMNS;
  if (CAUSAL && !KEYS) end = min(keys, first_row + TEAMS * ROWS + keys - queries);
  if (LENGTHS && !KEYS) end = min(end, pairs.length);

  auto copy_columns = [&](int start) {
    if (start < end) {
      int buffer = start / COLUMNS % BUFFERS;
      copy_tokens<COLUMNS, THREADS, false>(shared.column[buffer], column, start, columns, threadIdx.x);
      copy_tokens<COLUMNS, THREADS, true>(shared.values[buffer], column_values, start, columns, threadIdx.x);
    }
    end_group_of_copies();
  };
  int thread = threadIdx.x % (TEAM * LANES);
  copy_tokens<ROWS, TEAM * LANES, false>(own.row, row, pairs.row, rows, thread);
  if constexpr (SCORES) copy_tokens<ROWS, TEAM * LANES, true>(own.values, row_values, pairs.row, rows, thread);
  if (BUFFERS == 2) copy_columns(begin);

  float values[ROWS][OWN_D_BLOCKS][HEAD_BLOCKS][4] = {}, scores[OWN_HEADS][D_BLOCKS][4] = {};
  unsigned own_rows[OWN_HEADS][SIZE / 8];
  for (int start = begin; start < end; start += COLUMNS) {
    copy_columns(BUFFERS == 2 ? start + COLUMNS : start);
    if (BUFFERS == 1) end_group_of_copies();
    wait_for_copies();
    __syncthreads();
    int buffer = start / COLUMNS % BUFFERS;
    const Chunk *tile = shared.column[buffer], *tile_values = shared.values[buffer];
    pairs.column = start;
    lane = warp.lane = forget(warp.lane);
    // Nothing to do where the last query of the pairs stands before their first key.
    bool all_masked = CAUSAL && (KEYS ? pairs.row > start + COLUMNS - 1 + keys - queries
                                      : start > pairs.row + ROWS - 1 + keys - queries);
    if (!all_masked) {
      load_rows(own_rows, own, warp);
      make_codes(own, own_rows, tile, pairs, (float)scale, (float)eps, warp);
      ColumnCode column_code(own, lane);
      float da_row[ROWS][HEAD_BLOCKS][4] = {}, da_column[COLUMNS][HEAD_BLOCKS][2] = {};
#pragma unroll
      for (int block = 0; block < OWN_D_BLOCKS; block++) {
        int d = warp.member * OWN_D_BLOCKS + block;
        __syncwarp();
        // Loaded again, where registers are too few to keep it.
        if (KEYS && block > 0) column_code = ColumnCode(own, lane);
        mix_columns(patch, column_code, tile_values, d, lane);
        __syncwarp();
#pragma unroll
        for (int x = 0; x < ROWS; x += 2) {
          unsigned u[2][4];
          if constexpr (SCORES) {
            add_row_gradients(da_row, u, patch, own, x, d, lane);
          } else {
            Address first = address(patch + lane / 8 % 2 * PAIRS + slot(lane % 8 + lane / 16 * 8, 0));
            load_transposed(u[0], at_row(first, x));
            load_transposed(u[1], at_row(first, x + 1));
          }
#pragma unroll
          for (int i = 0; i < 2 && VALUES; i++) {
            unsigned row_code[HEAD_BLOCKS][2];
            load_row_code(row_code, address(own.code + slot(lane % 16, 0)), x + i);
            unsigned turned[4] = {u[i][0], u[i][1], u[i][2], u[i][3]};
            if constexpr (SCORES) {
              turned[0] = transpose(u[i][0]), turned[1] = transpose(u[i][2]);
              turned[2] = transpose(u[i][1]), turned[3] = transpose(u[i][3]);
            }
            add_values(values[x + i][block], turned, row_code);
          }
        }
        if constexpr (SCORES) {
          __syncwarp();
#pragma unroll
          for (int y = 0; y < COLUMNS; y += 2) add_column_gradient(da_column, patch, tile_values, y, d, lane);
        }
      }
      if constexpr (SCORES) {
        make_score_gradients(own, da_row, da_column, (float)eps, warp);
#pragma unroll
        for (int h = 0; h < OWN_HEADS; h++) add_scores(scores[h], own, tile, warp.member * OWN_HEADS + h, lane);
      }
    }
    __syncthreads();
  }

  auto write = [&](number* out, int x, int h, int d, float sum) {
    if (pairs.row + x < rows && h < HEADS)
      out[((row_token + pairs.row + x) * HEADS + h) * SIZE + d] = (number)pack(sum, 0.f);
  };
  if constexpr (VALUES) {
#pragma unroll
    for (int i = 0; i < ROWS * OWN_D_BLOCKS * HEAD_BLOCKS * 4; i++) {
      int e = i % 4, head_block = i / 4 % HEAD_BLOCKS, block = i / 4 / HEAD_BLOCKS % OWN_D_BLOCKS;
      int x = i / 4 / HEAD_BLOCKS / OWN_D_BLOCKS, d = (warp.member * OWN_D_BLOCKS + block) * 16 + lane / 4 + e / 2 * 8;
      write(value_sums, x, head_block * 8 + lane % 4 * 2 + e % 2, d, values[x][block][head_block][e]);
    }
  }
  if constexpr (SCORES) {
#pragma unroll
    for (int i = 0; i < OWN_HEADS * D_BLOCKS * 4; i++) {
      int e = i % 4, block = i / 4 % D_BLOCKS, h = i / 4 / D_BLOCKS;
      write(score_sums, lane % 4 * 2 + e % 2, warp.member * OWN_HEADS + h, block * 16 + lane / 4 + e / 2 * 8,
            scores[h][block][e] * (float)scale);
    }
  }
}
