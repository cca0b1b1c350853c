// Enough of CUDA to run the kernels of hyla.attention on a CPU: every thread of a block is a fiber.
// A warp runs until all its lanes wait at a barrier, so that one that is missing between warps shows.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx;
using std::max;
using std::min;

static float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
static unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static float rsqrtf(float x) { return 1.f / sqrtf(x); }

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 18);
  bool done;
  unsigned waits;  // the number of a barrier, counted from 1
  unsigned exchanges;
  float sent[2];
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static void (*body)();

static void pause_fiber() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }

static void wait_at(unsigned barrier) {
  fibers[threadIdx.x].waits = barrier;
  pause_fiber();
}
static void __syncthreads() { wait_at(1); }

// After a pause every lane of the warp has sent; the next exchange writes to the other slot.
static float __shfl_xor_sync(unsigned, float x, int step) {
  unsigned me = threadIdx.x, turn = fibers[me].exchanges++ % 2;
  fibers[me].sent[turn] = x;
  pause_fiber();
  return fibers[me ^ step].sent[turn];
}

static void __syncwarp() { pause_fiber(); }

static void start_fiber() {
  body();
  fibers[threadIdx.x].done = true;
  pause_fiber();
}

static void run_block(unsigned threads) {
  fibers.resize(threads);
  for (Fiber& fiber : fibers) {
    fiber.done = false;
    fiber.waits = 0;
    fiber.exchanges = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, start_fiber, 0);
  }
  for (unsigned left = threads; left;) {
    bool ran = false;
    // A warp goes on alone until all its lanes wait; warps in both orders, in turn.
    static unsigned round;
    round++;
    for (unsigned i = 0; i < threads; i += 32) {
      unsigned first = round % 2 ? i : threads - 32 - i;
      for (bool moved = true; moved;) {
        moved = false;
        for (unsigned t = first; t < first + 32; t++) {
          if (fibers[t].done || fibers[t].waits) continue;
          threadIdx.x = t;
          swapcontext(&scheduler, &fibers[t].context);
          left -= fibers[t].done;
          ran = moved = true;
        }
      }
    }
    // When none can go on, those at the barriers of a part of the block do first.
    unsigned highest = 0;
    for (Fiber& fiber : fibers) highest = max(highest, fiber.done ? 0 : fiber.waits);
    if (!ran)
      for (Fiber& fiber : fibers) fiber.waits = highest > 1 && fiber.waits == 1 ? 1 : 0;
  }
}

static void** arguments;

template <typename... Types, size_t... I>
static void call(void (*kernel)(Types...), std::index_sequence<I...>) {
  kernel(*(Types*)arguments[I]...);
}

template <typename... Types>
static void call(void (*kernel)(Types...)) {
  call(kernel, std::index_sequence_for<Types...>());
}

static void run_grid(unsigned blocks, unsigned rows, unsigned threads) {
  for (blockIdx.y = 0; blockIdx.y < rows; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) run_block(threads);
}
