// silu(gate) * up, sixteen elements at a time.
#include "lanes.h"
#include "parallel.h"

namespace octavo {

constexpr int kPieceRows = 16;  // some microseconds: less is not worth waking a thread

static inline Lanes silu_mul(Lanes gate, Lanes up) {
  Lanes one = broadcast(1.0f);
  return gate / (one + exp2(gate * broadcast(-kLog2E))) * up;
}

template <class T>
static void silu_mul(const float* gate_up, T* y, int64_t tokens, int64_t inner, int64_t threads) {
  parallel(threads, tokens, kPieceRows, [&](int64_t t) {
    const float* gate = gate_up + t * 2 * inner;
    const float* up = gate + inner;
    T* out = y + t * inner;
    int64_t i = 0;
    for (; i + kLanes <= inner; i += kLanes)
      store(out + i, silu_mul(load(gate + i), load(up + i)));
    if (i < inner)
      store_first(out + i, inner - i,
                  silu_mul(load_first(gate + i, inner - i, 0.0f),
                           load_first(up + i, inner - i, 0.0f)));
  });
}

}  // namespace octavo

#define EXPORT(suffix, T)                                                                       \
  extern "C" void octavo_silu_mul_##suffix(const float* gate_up, T* y, int64_t tokens,          \
                                           int64_t inner, int64_t threads) {                    \
    octavo::silu_mul(gate_up, y, tokens, inner, threads);                                       \
  }
OCTAVO_FOR_EACH_TYPE(EXPORT)
