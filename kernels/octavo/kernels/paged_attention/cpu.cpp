// Causal attention over pages with an online softmax.
//
// A query head walks its keys in chunks of 64 that begin at absolute positions, so the order of
// its sums is a function of its own position: prompt chunks, single tokens, batches and threads
// give the same bits. Several queries and the heads of a group share a tile, so that keys and
// values, once loaded, serve up to kTileRows rows.
#include <algorithm>
#include <limits>
#include <vector>

#include "kv_pool.h"
#include "lanes.h"
#include "parallel.h"

namespace octavo {

constexpr int kChunk = 64;               // keys between two rescalings
constexpr int kGroups = kChunk / kLanes; // registers of scores a row
constexpr int kTileRows = 24;            // measured: 24 rows x 64 dims of q and output stay in L1
constexpr int kRows = 6;                 // rows of a register block
#if defined(__AVX512F__)
constexpr int kColumns = 4;              // 6 x 4 of 32 registers accumulate
#else
constexpr int kColumns = 1;              // 6 x 2 of 16 registers accumulate
#endif

struct Tile {
  int64_t request, query, queries, position;  // first query's row and position
};

template <class T>
struct Problem {
  const float* qkv;
  Layer<T> layer;
  const int32_t* block_tables;
  T* output;
  int64_t table_width, heads;
  float scale;

  int64_t group() const { return heads / layer.kv_heads; }
};

// c[r][j] += sum over k of a[r][k] * b[j][k], where b[j][k] is a register at b[j] + k * b_step.
template <int rows, int columns, class T>
static inline void multiply(const float* a, int64_t a_step, const T* const* b, int64_t b_step,
                            int64_t depth, float* c, int64_t c_step) {
  Lanes sums[rows][columns];
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < columns; ++j) sums[r][j] = load(c + r * c_step + j * kLanes);
  for (int64_t k = 0; k < depth; ++k) {
    Lanes column[columns];
    for (int j = 0; j < columns; ++j) column[j] = load(b[j] + k * b_step);
    for (int r = 0; r < rows; ++r) {
      Lanes factor = broadcast(a[r * a_step + k]);
      for (int j = 0; j < columns; ++j) sums[r][j] = fma(factor, column[j], sums[r][j]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < columns; ++j) store(c + r * c_step + j * kLanes, sums[r][j]);
}

template <int columns, class T>
static inline void multiply(int64_t rows, const float* a, int64_t a_step, const T* const* b,
                            int64_t b_step, int64_t depth, float* c, int64_t c_step) {
  for (; rows >= kRows; rows -= kRows, a += kRows * a_step, c += kRows * c_step)
    multiply<kRows, columns>(a, a_step, b, b_step, depth, c, c_step);
  switch (rows) {
    case 5: return multiply<5, columns>(a, a_step, b, b_step, depth, c, c_step);
    case 4: return multiply<4, columns>(a, a_step, b, b_step, depth, c, c_step);
    case 3: return multiply<3, columns>(a, a_step, b, b_step, depth, c, c_step);
    case 2: return multiply<2, columns>(a, a_step, b, b_step, depth, c, c_step);
    case 1: return multiply<1, columns>(a, a_step, b, b_step, depth, c, c_step);
  }
}

// As above for any number of columns.
template <class T>
static void multiply(int64_t rows, int64_t columns, const float* a, int64_t a_step,
                     const T* const* b, int64_t b_step, int64_t depth, float* c, int64_t c_step) {
  int64_t j = 0;
  for (; j + kColumns <= columns; j += kColumns)
    multiply<kColumns>(rows, a, a_step, b + j, b_step, depth, c + j * kLanes, c_step);
  for (; j < columns; ++j)
    multiply<1>(rows, a, a_step, b + j, b_step, depth, c + j * kLanes, c_step);
}

// What a tile's rows have gathered so far; row = query in tile * group + head in group.
struct Rows {
  std::vector<float> q, sums, scores, weights, largest;

  void resize(int64_t rows, int64_t head_dim) {
    q.resize(rows * head_dim);
    sums.resize(rows * head_dim);
    scores.resize(rows * kChunk);
    weights.resize(rows * kLanes);
    largest.resize(rows);
  }
};

// Replaces a row's scores by exp2(score - largest) and rescales what it has gathered.
static inline void soften(Rows& rows, int64_t row, int64_t visible, int64_t groups,
                          int64_t head_dim) {
  constexpr float hidden = -std::numeric_limits<float>::infinity();
  float* scores = &rows.scores[row * kChunk];
  Lanes top = broadcast(hidden);
  for (int64_t g = 0; g < groups; ++g) {
    int64_t count = visible - g * kLanes;
    if (count < kLanes) store(scores + g * kLanes, load_first(scores + g * kLanes, count, hidden));
    top = maximum(top, load(scores + g * kLanes));
  }
  float before = rows.largest[row];
  float after = std::max(before, largest(top));
  Lanes weights = load(&rows.weights[row * kLanes]);
  if (after != before) {
    Lanes factor = exp2(broadcast(before - after));
    weights = weights * factor;
    float* sums = &rows.sums[row * head_dim];
    for (int64_t i = 0; i < head_dim; i += kLanes) store(sums + i, load(sums + i) * factor);
    rows.largest[row] = after;
  }
  for (int64_t g = 0; g < groups; ++g) {
    Lanes weight = exp2(load(scores + g * kLanes) - broadcast(after));
    weights = weights + weight;
    store(scores + g * kLanes, weight);
  }
  store(&rows.weights[row * kLanes], weights);
}

template <class T>
static void attend_chunk(const Problem<T>& problem, const Tile& tile, int64_t kv_head,
                         int64_t first_key, Rows& rows) {
  const Layer<T>& layer = problem.layer;
  int64_t group = problem.group(), num_rows = tile.queries * group;
  int64_t dim = layer.head_dim, block_tokens = layer.block_tokens;
  int64_t num_keys = std::min<int64_t>(kChunk, tile.position + tile.queries - first_key);
  int64_t groups = (num_keys + kLanes - 1) / kLanes;
  const int32_t* table = problem.block_tables + tile.request * problem.table_width;
  const T* keys[kGroups];
  const T* values[kGroups];
  for (int64_t g = 0; g < groups; ++g) {
    int64_t key = first_key + g * kLanes;
    int64_t block = table[key / block_tokens], offset = key % block_tokens;
    keys[g] = layer.keys(block, kv_head) + offset;
    values[g] = layer.values(block, kv_head) + offset * dim;
  }
  std::fill_n(rows.scores.begin(), num_rows * kChunk, 0.0f);
  multiply(num_rows, groups, rows.q.data(), dim, keys, block_tokens, dim, rows.scores.data(),
           kChunk);
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t visible = tile.position + row / group + 1 - first_key;
    soften(rows, row, visible, groups, dim);
  }
  // Slots without a key are never loaded: what they hold may be NaN.
  for (int64_t g = 0; g < groups; ++g) {
    const T* columns[kMaxHeadDim / kLanes];
    for (int64_t i = 0; i < dim / kLanes; ++i) columns[i] = values[g] + i * kLanes;
    int64_t depth = std::min<int64_t>(kLanes, num_keys - g * kLanes);
    multiply(num_rows, dim / kLanes, &rows.scores[g * kLanes], kChunk, columns, dim, depth,
             rows.sums.data(), dim);
  }
}

template <class T>
static void attend(const Problem<T>& problem, const Tile& tile, int64_t kv_head, Rows& rows) {
  int64_t group = problem.group(), dim = problem.layer.head_dim;
  int64_t num_rows = tile.queries * group, width = problem.heads * dim;
  int64_t row_size = width + 2 * problem.layer.kv_heads * dim;
  Lanes scale = broadcast(problem.scale * kLog2E);
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t query = tile.query + row / group, head = kv_head * group + row % group;
    const float* q = problem.qkv + query * row_size + head * dim;
    for (int64_t i = 0; i < dim; i += kLanes) store(&rows.q[row * dim + i], load(q + i) * scale);
  }
  std::fill_n(rows.sums.begin(), num_rows * dim, 0.0f);
  std::fill_n(rows.weights.begin(), num_rows * kLanes, 0.0f);
  std::fill_n(rows.largest.begin(), num_rows, -std::numeric_limits<float>::infinity());
  for (int64_t key = 0; key < tile.position + tile.queries; key += kChunk)
    attend_chunk(problem, tile, kv_head, key, rows);
  for (int64_t row = 0; row < num_rows; ++row) {
    int64_t query = tile.query + row / group, head = kv_head * group + row % group;
    T* out = problem.output + query * width + head * dim;
    Lanes inverse = broadcast(1.0f / sum(load(&rows.weights[row * kLanes])));
    for (int64_t i = 0; i < dim; i += kLanes)
      store(out + i, load(&rows.sums[row * dim + i]) * inverse);
  }
}

// Cuts the requests into tiles, the longest contexts first within a request.
static std::vector<Tile> cut(const int32_t* query_starts, const int32_t* first_positions,
                             int64_t requests, int64_t tile_queries) {
  std::vector<Tile> tiles;
  for (int64_t r = 0; r < requests; ++r)
    for (int64_t query = query_starts[r]; query < query_starts[r + 1]; query += tile_queries) {
      int64_t queries = std::min<int64_t>(tile_queries, query_starts[r + 1] - query);
      tiles.push_back({r, query, queries, first_positions[r] + query - query_starts[r]});
    }
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
    return a.position + a.queries > b.position + b.queries;
  });
  return tiles;
}

template <class T>
static void paged_attention(const Problem<T>& problem, const int32_t* query_starts,
                            const int32_t* first_positions, int64_t requests, int64_t threads) {
  int64_t group = problem.group(), kv_heads = problem.layer.kv_heads;
  int64_t tile_queries = std::max<int64_t>(1, kTileRows / group);
  std::vector<Tile> tiles = cut(query_starts, first_positions, requests, tile_queries);
  int64_t items = static_cast<int64_t>(tiles.size()) * kv_heads;
  parallel(threads, items, [&](int64_t i) {
    static thread_local Rows scratch;
    scratch.resize(tile_queries * group, problem.layer.head_dim);
    attend(problem, tiles[i / kv_heads], i % kv_heads, scratch);
  });
}

}  // namespace octavo

#define EXPORT(suffix, T)                                                                       \
  extern "C" void octavo_paged_attention_##suffix(                                              \
      const float* qkv, T* layer_pool, const int32_t* block_tables,                             \
      const int32_t* query_starts, const int32_t* first_positions, T* output, int64_t requests, \
      int64_t table_width, int64_t heads, int64_t kv_heads, int64_t head_dim,                   \
      int64_t block_tokens, int64_t block_stride, float scale, int64_t threads) {               \
    octavo::Problem<T> problem{                                                                 \
        qkv, {layer_pool, kv_heads, head_dim, block_tokens, block_stride}, block_tables,        \
        output, table_width, heads, scale};                                                     \
    octavo::paged_attention(problem, query_starts, first_positions, requests, threads);         \
  }
OCTAVO_FOR_EACH_TYPE(EXPORT)
