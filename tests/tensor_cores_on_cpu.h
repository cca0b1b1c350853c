// The instructions of wide.cu that the lanes of a warp do together, on a CPU. After cuda_on_cpu.h.

struct Given {  // what a lane brings to an instruction
  const void* row;
  unsigned a[4], b[2];
};
static Given given[1024][2];
static unsigned turns[1024];

// Shows the others what this lane brings; afterwards `of(lane)` is what another one brought.
struct Together {
  unsigned first, turn;
  Together(const Given& mine) : first(threadIdx.x / 32 * 32), turn(turns[threadIdx.x]++ % 2) {
    given[threadIdx.x][turn] = mine;
    pause_fiber();
  }
  const Given& of(unsigned lane) const { return given[first + lane][turn]; }
};

typedef unsigned short number_bits;
static float widen(number_bits x) {
  return TYPE == 1 ? __uint_as_float((unsigned)x << 16) : (float)__builtin_bit_cast(_Float16, x);
}
static number_bits narrow(float x) {
  if (TYPE == 2) return __builtin_bit_cast(number_bits, (_Float16)x);
  unsigned bits = __float_as_uint(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned pack(float low, float high) { return narrow(low) | (unsigned)narrow(high) << 16; }

static unsigned pack_relu(float low, float high) { return pack(max(low, 0.f), max(high, 0.f)); }

static unsigned positive_halves(unsigned both) {
  return (both & 0x7fff ? 0xffffu : 0u) | (both & 0x7fff0000 ? 0xffff0000u : 0u);
}

template <typename Row>
static void copy(Row* to, const void* from, bool exists) {
  memset(to, 0, 16);
  if (exists) memcpy(to, from, 16);
}
static void wait_for_copies() {}

static number_bits& entry(const Together& all, int matrix, int row, int column) {
  return ((number_bits*)all.of(8 * matrix + row).row)[column];
}

template <bool TRANSPOSED, int COUNT>
static void move_matrices(unsigned (&m)[COUNT], const void* row, bool stores) {
  Together all({row});
  int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4 * 2;
  for (int matrix = 0; matrix < COUNT; matrix++) {
    number_bits& first = TRANSPOSED ? entry(all, matrix, j, i) : entry(all, matrix, i, j);
    number_bits& second = TRANSPOSED ? entry(all, matrix, j + 1, i) : entry(all, matrix, i, j + 1);
    if (stores) first = m[matrix], second = m[matrix] >> 16;
    else m[matrix] = first | (unsigned)second << 16;
  }
  pause_fiber();  // nobody goes on before all have read or written
}

typedef size_t Address;
static Address address(const void* p) { return (Address)p; }

template <int COUNT>
static void load(unsigned (&m)[COUNT], Address row) {
  move_matrices<false>(m, (void*)row, false);
}
template <int COUNT>
static void load_transposed(unsigned (&m)[COUNT], Address row) {
  move_matrices<true>(m, (void*)row, false);
}
static void store(Address row, const unsigned (&m)[4]) {
  unsigned copied[4] = {m[0], m[1], m[2], m[3]};
  move_matrices<false>(copied, (void*)row, true);
}
static void store_transposed(Address row, const unsigned (&m)[4]) {
  unsigned copied[4] = {m[0], m[1], m[2], m[3]};
  move_matrices<true>(copied, (void*)row, true);
}

static unsigned transpose(unsigned m) {
  Together all({nullptr, {m}});
  int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4 * 2;
  unsigned first = all.of(j * 4 + i / 2).a[0] >> i % 2 * 16 & 0xffff;
  unsigned second = all.of((j + 1) * 4 + i / 2).a[0] >> i % 2 * 16 & 0xffff;
  return first | second << 16;
}

template <typename Warp> static void wait_for_team(const Warp& warp) { wait_at(warp.team + 2); }

static int forget(int x) { return x; }

static float half_of(unsigned both, int which) { return widen(which ? both >> 16 : both); }

static void multiply_halves(float (&c)[4], const Given& mine, int depth) {
  Together all(mine);
  int lane = threadIdx.x % 32;
  for (int e = 0; e < 4; e++) {
    int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < depth; k++) {
      unsigned a = all.of(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2];
      unsigned b = all.of(column * 4 + k % 8 / 2).b[k / 8];
      c[e] += half_of(a, k % 2) * half_of(b, k % 2);
    }
  }
}

static void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  multiply_halves(c, {nullptr, {a0, a1, a2, a3}, {b0, b1}}, 16);
}
static void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  multiply_halves(c, {nullptr, {a0, a1}, {b}}, 8);
}
static void product(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  c[0] = c[1] = c[2] = c[3] = 0.f;
  multiply(c, a0, a1, a2, a3, b0, b1);
}
static void product(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  c[0] = c[1] = c[2] = c[3] = 0.f;
  multiply(c, a0, a1, b);
}
