// Root mean square norm. Sixteen partial sums a row, in one order, whoever computes the row.
#include "lanes.h"
#include "parallel.h"

namespace octavo {

constexpr int kPieceRows = 32;  // some microseconds: less is not worth waking a thread

// The elements of p from i on, at most a register of them; missing ones are zero.
template <class T>
static inline Lanes load_rest(const T* p, int64_t i, int64_t size) {
  return size - i < kLanes ? load_first(p + i, size - i, 0.0f) : load(p + i);
}

template <class T>
static inline void store_rest(T* p, int64_t i, int64_t size, Lanes x) {
  if (size - i < kLanes)
    store_first(p + i, size - i, x);
  else
    store(p + i, x);
}

template <class T>
static void normalize(const float* v, const T* weight, float squares, float eps, int64_t hidden,
                      T* y) {
  Lanes scale = broadcast(1.0f / std::sqrt(squares / static_cast<float>(hidden) + eps));
  for (int64_t i = 0; i < hidden; i += kLanes)
    store_rest(y, i, hidden, load_rest(v, i, hidden) * scale * load_rest(weight, i, hidden));
}

template <class T>
static void rms_norm(const float* x, float* residual, const T* weight, T* y, int64_t tokens,
                     int64_t hidden, float eps, int64_t threads) {
  parallel(threads, tokens, kPieceRows, [&](int64_t t) {
    const float* row = x + t * hidden;
    float* sums = residual ? residual + t * hidden : nullptr;
    Lanes squares = broadcast(0.0f);
    for (int64_t i = 0; i < hidden; i += kLanes) {
      Lanes v = load_rest(row, i, hidden);
      if (sums) {
        v = load_rest(sums, i, hidden) + v;
        store_rest(sums, i, hidden, v);
      }
      squares = fma(v, v, squares);
    }
    normalize(sums ? sums : row, weight, sum(squares), eps, hidden, y + t * hidden);
  });
}

}  // namespace octavo

#define EXPORT(suffix, T)                                                                       \
  extern "C" void octavo_rms_norm_##suffix(const float* x, float* residual, const T* weight,    \
                                           T* y, int64_t tokens, int64_t hidden, float eps,     \
                                           int64_t threads) {                                   \
    octavo::rms_norm(x, residual, weight, y, tokens, hidden, eps, threads);                     \
  }
OCTAVO_FOR_EACH_TYPE(EXPORT)
