// Runs many short jobs of changing sizes beside threads that take the processor away, and counts
// how often each item was computed.
#include "parallel.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  double seconds = std::atof(argv[1]);
  int64_t threads = std::atoi(argv[2]);
  const int64_t sizes[] = {2, 24, 3, 16, 2, 9};
  std::vector<std::atomic<int>> counts(24);
  for (int i = 0; i < 3; ++i)
    std::thread([] {
      for (volatile int64_t n = 0;; n = n + 1) {
      }
    }).detach();
  auto begun = std::chrono::steady_clock::now();
  int64_t jobs = 0;
  while (std::chrono::steady_clock::now() - begun < std::chrono::duration<double>(seconds)) {
    for (int64_t size : sizes) {
      for (auto& count : counts) count.store(0, std::memory_order_relaxed);
      octavo::parallel(threads, size, [&](int64_t i) {
        counts[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
      });
      for (int64_t i = 0; i < 24; ++i) {
        int expected = i < size ? 1 : 0;
        if (counts[static_cast<size_t>(i)].load() != expected) {
          std::printf("job %lld: item %lld of %lld computed %d times\n", (long long)jobs,
                      (long long)i, (long long)size, counts[static_cast<size_t>(i)].load());
          std::fflush(stdout);
          std::_Exit(1);
        }
      }
      ++jobs;
    }
  }
  std::printf("%lld jobs\n", (long long)jobs);
  std::fflush(stdout);
  std::_Exit(0);
}
