// One layer of the KV pool; kv_pool.py specifies the layout.
#pragma once

#include <cstdint>

namespace octavo {

constexpr int kMaxHeadDim = 512;

template <class T>
struct Layer {
  T* first;  // the layer's part of block 0
  int64_t kv_heads, head_dim, block_tokens, block_stride;

  // [head_dim][block_tokens]
  T* keys(int64_t block, int64_t head) const {
    return first + block * block_stride + head * head_dim * block_tokens;
  }
  // [block_tokens][head_dim]
  T* values(int64_t block, int64_t head) const { return keys(block, kv_heads + head); }
};

}  // namespace octavo
