// Head norm, rotary positions, and the write of k and v into their pages.
#include "kv_pool.h"
#include "lanes.h"
#include "parallel.h"

namespace octavo {

constexpr int kPieceRows = 16;  // some microseconds: less is not worth waking a thread

// Copies a head to `out`, scaled by its root mean square norm if there is a weight.
template <class T>
static void normalize(const float* head, const T* weight, float eps, int64_t dim, float* out) {
  Lanes squares = broadcast(0.0f);
  for (int64_t i = 0; i < dim; i += kLanes) {
    Lanes x = load(head + i);
    squares = fma(x, x, squares);
    store(out + i, x);
  }
  if (!weight) return;
  float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; i += kLanes)
    store(out + i, load(out + i) * broadcast(scale) * load(weight + i));
}

// Writes the rotated head to out[0], out[step], ...
template <class T>
static void rotate(const float* head, const float* table, int64_t dim, T* out, int64_t step) {
  int64_t half = dim / 2;
  const float* cosine = table;
  const float* sine = table + half;
  for (int64_t i = 0; i < half; ++i) {
    float a = head[i], b = head[i + half];
    round_to(a * cosine[i] - b * sine[i], out + i * step);
    round_to(b * cosine[i] + a * sine[i], out + (i + half) * step);
  }
}

template <class T>
static void rope_kv_write(float* qkv, const Layer<T>& layer, const float* rope_table,
                          const int64_t* positions, const int64_t* slots, const T* q_norm,
                          const T* k_norm, int64_t tokens, int64_t heads, float eps,
                          int64_t threads) {
  int64_t dim = layer.head_dim, row_size = (heads + 2 * layer.kv_heads) * dim;
  parallel(threads, tokens, kPieceRows, [&](int64_t t) {
    alignas(64) float head[kMaxHeadDim];
    float* row = qkv + t * row_size;
    const float* table = rope_table + positions[t] * dim;
    for (int64_t h = 0; h < heads; ++h) {
      normalize(row + h * dim, q_norm, eps, dim, head);
      rotate(head, table, dim, row + h * dim, 1);
    }
    if (slots[t] < 0) return;
    int64_t block = slots[t] / layer.block_tokens, offset = slots[t] % layer.block_tokens;
    for (int64_t h = 0; h < layer.kv_heads; ++h) {
      const float* k = row + (heads + h) * dim;
      normalize(k, k_norm, eps, dim, head);
      rotate(head, table, dim, layer.keys(block, h) + offset, layer.block_tokens);
      const float* v = k + layer.kv_heads * dim;
      T* values = layer.values(block, h) + offset * dim;
      for (int64_t i = 0; i < dim; i += kLanes) store(values + i, load(v + i));
    }
  });
}

}  // namespace octavo

#define EXPORT(suffix, T)                                                                       \
  extern "C" void octavo_rope_kv_write_##suffix(                                                \
      float* qkv, T* layer_pool, const float* rope_table, const int64_t* positions,             \
      const int64_t* slots, const T* q_norm, const T* k_norm, int64_t tokens, int64_t heads,    \
      int64_t kv_heads, int64_t head_dim, int64_t block_tokens, int64_t block_stride,           \
      float eps, int64_t threads) {                                                             \
    octavo::Layer<T> layer{layer_pool, kv_heads, head_dim, block_tokens, block_stride};         \
    octavo::rope_kv_write(qkv, layer, rope_table, positions, slots, q_norm, k_norm, tokens,     \
                          heads, eps, threads);                                                 \
  }
OCTAVO_FOR_EACH_TYPE(EXPORT)
