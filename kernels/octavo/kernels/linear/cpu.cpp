// Products of activations with a weight packed in panels of 64 outputs.
//
// A result is one sum over the inputs in ascending order, so it does not depend on the number of
// rows, on where the row is, or on threads.
#include <algorithm>
#include <vector>

#include "lanes.h"
#include "parallel.h"

namespace octavo {

constexpr int kPanel = 64;      // outputs of a panel
constexpr int kItemRows = 48;   // rows of a work item: small enough to share, large enough to reuse
constexpr int kRows = 6;        // rows of a register block
#if defined(__AVX512F__)
constexpr int kColumns = 4;     // 6 x 4 of 32 registers accumulate
#else
constexpr int kColumns = 1;     // 6 x 2 of 16 registers accumulate
#endif

template <class T>
struct Product {
  const T* x;
  const T* weight;    // float: [panel][input][64]; bf16: [panel][input / 2][64][2]
  const float* bias;  // [outputs] or null
  float* y;  // [rows][outputs]
  int64_t rows, inputs, outputs;
};

// What a register block reads of x, and how one step of the sum is taken.
template <class T>
struct Step {  // float: one input a step
  using Factor = float;
  static constexpr int inputs = 1;
  static const Factor* in_place(const T* x, int64_t) { return x; }
  static void widen(const T*, int64_t, Factor*) {}
  template <int rows, int columns>
  static void add(const Factor* x, int64_t x_step, const T* w, Lanes (&sums)[rows][columns]) {
    for (int j = 0; j < columns; ++j) {
      Lanes column = load(w + j * kLanes);
      for (int r = 0; r < rows; ++r) sums[r][j] = fma(broadcast(x[r * x_step]), column, sums[r][j]);
    }
  }
};

#if defined(__AVX512BF16__)
template <>
struct Step<bf16> {  // two inputs a step, multiplied and added by one instruction
  struct Factor {
    bf16 even, odd;
  };
  static constexpr int inputs = 2;
  static const Factor* in_place(const bf16* x, int64_t count) {
    return count % 2 ? nullptr : reinterpret_cast<const Factor*>(x);
  }
  static void widen(const bf16* x, int64_t count, Factor* out) {
    std::memcpy(out, x, count * sizeof(bf16));
  }
  template <int rows, int columns>
  static void add(const Factor* x, int64_t x_step, const bf16* w, Lanes (&sums)[rows][columns]) {
    __m512bh column[columns];
    for (int j = 0; j < columns; ++j)
      column[j] = (__m512bh)_mm512_loadu_si512(w + j * kLanes * 2);
    for (int r = 0; r < rows; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * x_step, sizeof pair);
      __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
      for (int j = 0; j < columns; ++j)
        sums[r][j] = _mm512_dpbf16_ps(sums[r][j], factor, column[j]);
    }
  }
};
#else
template <>
struct Step<bf16> {  // two inputs a step, widened
  struct Factor {
    float even, odd;
  };
  static constexpr int inputs = 2;
  static const Factor* in_place(const bf16*, int64_t) { return nullptr; }
  static void widen(const bf16* x, int64_t count, Factor* out) {
    for (int64_t i = 0; i < count / 2; ++i) out[i] = {to_float(x[2 * i]), to_float(x[2 * i + 1])};
    if (count % 2) out[count / 2] = {to_float(x[count - 1]), 0.0f};
  }
  template <int rows, int columns>
  static void add(const Factor* x, int64_t x_step, const bf16* w, Lanes (&sums)[rows][columns]) {
    for (int j = 0; j < columns; ++j) {
      Lanes even = load_even(w + j * kLanes * 2), odd = load_odd(w + j * kLanes * 2);
      for (int r = 0; r < rows; ++r) {
        sums[r][j] = fma(broadcast(x[r * x_step].even), even, sums[r][j]);
        sums[r][j] = fma(broadcast(x[r * x_step].odd), odd, sums[r][j]);
      }
    }
  }
};
#endif

template <int rows, class T>
static void block(const Product<T>& product, int64_t row, int64_t panel,
                  const typename Step<T>::Factor* x) {
  using S = Step<T>;
  int64_t steps = (product.inputs + S::inputs - 1) / S::inputs;
  const T* weight = product.weight + panel * steps * S::inputs * kPanel;
  for (int c = 0; c < kPanel; c += kColumns * kLanes) {
    int64_t first = panel * kPanel + c;
    Lanes sums[rows][kColumns];
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < kColumns; ++j) sums[r][j] = broadcast(0.0f);
    for (int64_t k = 0; k < steps; ++k)
      S::template add<rows, kColumns>(x + k, steps, weight + (k * kPanel + c) * S::inputs, sums);
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < kColumns; ++j) {
        int64_t output = first + j * kLanes, count = product.outputs - output;
        if (count <= 0) break;
        float* y = product.y + (row + r) * product.outputs + output;
        Lanes sum = sums[r][j];
        if (product.bias)
          sum = sum + (count < kLanes ? load_first(product.bias + output, count, 0.0f)
                                      : load(product.bias + output));
        if (count < kLanes)
          store_first(y, count, sum);
        else
          store(y, sum);
      }
  }
}

template <class T>
static void item(const Product<T>& product, int64_t row, int64_t end, int64_t panel,
                 const typename Step<T>::Factor* x, int64_t steps) {
  for (x += row * steps; row < end; row += kRows, x += kRows * steps) {
    switch (std::min<int64_t>(end - row, kRows)) {
      case 6: block<6>(product, row, panel, x); break;
      case 5: block<5>(product, row, panel, x); break;
      case 4: block<4>(product, row, panel, x); break;
      case 3: block<3>(product, row, panel, x); break;
      case 2: block<2>(product, row, panel, x); break;
      case 1: block<1>(product, row, panel, x); break;
    }
  }
}

template <class T>
static void linear(const Product<T>& product, int64_t threads) {
  using S = Step<T>;
  int64_t steps = (product.inputs + S::inputs - 1) / S::inputs;
  int64_t panels = (product.outputs + kPanel - 1) / kPanel;
  int64_t row_items = (product.rows + kItemRows - 1) / kItemRows;
  std::vector<typename S::Factor> widened;
  const typename S::Factor* x = S::in_place(product.x, product.inputs);
  if (!x) widened.resize(product.rows * steps);
  if (!x) {
    parallel(threads, product.rows, kItemRows, [&](int64_t r) {
      S::widen(product.x + r * product.inputs, product.inputs, &widened[r * steps]);
    });
    x = widened.data();
  }
  parallel(threads, panels * row_items, [&](int64_t i) {
    int64_t row = i % row_items * kItemRows;
    item(product, row, std::min(product.rows, row + kItemRows), i / row_items, x, steps);
  });
}

}  // namespace octavo

#define EXPORT(suffix, T)                                                                       \
  extern "C" void octavo_linear_##suffix(const T* x, const T* weight, const float* bias,        \
                                         float* y, int64_t rows, int64_t inputs,                \
                                         int64_t outputs, int64_t threads) {                    \
    octavo::linear<T>({x, weight, bias, y, rows, inputs, outputs}, threads);                    \
  }
OCTAVO_FOR_EACH_TYPE(EXPORT)

// The instructions that this library was compiled to: with the sources, what rounds its results.
extern "C" const char* octavo_compiled_isa() {
#if defined(__AVX512BF16__)
  return "avx512bf16";
#elif defined(__AVX512F__)
  return "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
  return "avx2";
#elif defined(__FP_FAST_FMAF)
  return "fma";
#else
  return "plain";
#endif
}
