// Splits work over threads in a way that a busy machine cannot stall.
//
// The caller takes items like every worker does and waits only for items that somebody has begun.
// A worker that the system does not run in time is simply not there. OpenMP waits for all of its
// threads at each barrier: on two cores that others use too, a decode step took 5 to 20 times as
// long. Which thread computes an item never changes its result.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace octavo {

class Workers {
 public:
  using Call = void (*)(const void* work, int64_t item);

  // One for the process, never destroyed: its threads may outlive static objects.
  static Workers& shared() {
    static Workers& workers = *new Workers;
    return workers;
  }

  void run(int64_t threads, int64_t items, Call call, const void* work) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (threads <= 1 || items <= 1 || items >= static_cast<int64_t>(kClosed) || !turn.owns_lock()) {
      for (int64_t i = 0; i < items; ++i) call(work, i);
      return;
    }
    start(threads - 1);
    // Every item of the job before is done, but a worker that was not run for a while may be about
    // to look for another: it must not find one when items_ grows. So that job is closed first.
    uint64_t before = claims_.load(std::memory_order_relaxed) / kItems * kItems;
    claims_.store(before + kClosed);
    call_.store(call, std::memory_order_release);
    work_.store(work, std::memory_order_release);
    items_.store(items, std::memory_order_release);
    helpers_.store(threads - 1, std::memory_order_release);
    done_.store(0, std::memory_order_release);
    uint64_t job = before + kItems;
    claims_.store(job);
    if (sleepers_.load() > 0) {
      { std::lock_guard<std::mutex> lock(sleep_); }
      wake_.notify_all();
    }
    take_items(job);
    wait([&] { return done_.load(std::memory_order_acquire) == items; },
         [] { std::this_thread::yield(); });
  }

 private:
  void start(int64_t count) {
    try {
      for (; started_ < count && started_ < kMaxWorkers; ++started_)
        std::thread(&Workers::serve, this, started_).detach();
    } catch (const std::system_error&) {  // the system has no more threads: fewer helpers
    }
  }

  static constexpr uint64_t kItems = uint64_t{1} << 32;
  static constexpr uint64_t kClosed = kItems - 1;  // no job has so many items
  static constexpr int kMaxWorkers = 256;
  // Longer than the gap between two kernels of a layer, shorter than a time slice.
  static constexpr auto kSpin = std::chrono::microseconds(50);

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  // Spins until ready(), calling rest() over and over once that has taken kSpin.
  template <class Ready, class Rest>
  static void wait(Ready ready, Rest rest) {
    auto begun = std::chrono::steady_clock::now();
    for (int spins = 1; !ready(); ++spins) {
      if (spins % 32 == 0 && std::chrono::steady_clock::now() - begun > kSpin)
        rest();
      else
        pause();
    }
  }

  // Claims items while the job is on. A claim that succeeds proves that the fields read before it
  // belong to the job: they are changed after it was closed, and whoever reads a changed field
  // (acquire) cannot make a claim on what claims_ was before (release).
  void take_items(uint64_t job) {
    for (;;) {
      uint64_t claim = claims_.load(std::memory_order_acquire);
      if (claim / kItems != job / kItems) return;
      Call call = call_.load(std::memory_order_acquire);
      const void* work = work_.load(std::memory_order_acquire);
      if (static_cast<int64_t>(claim % kItems) >= items_.load(std::memory_order_acquire)) return;
      if (!claims_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
      call(work, static_cast<int64_t>(claim % kItems));
      done_.fetch_add(1, std::memory_order_acq_rel);
    }
  }

  void serve(int index) {
    uint64_t seen = 0;
    auto is_new = [&] { return claims_.load() / kItems != seen; };
    for (;;) {
      wait(is_new, [&] {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, is_new);
        sleepers_.fetch_sub(1);
      });
      uint64_t job = claims_.load(std::memory_order_acquire) / kItems * kItems;
      seen = job / kItems;
      if (index < helpers_.load(std::memory_order_acquire)) take_items(job);
    }
  }

  std::mutex turn_, sleep_;
  std::condition_variable wake_;
  int started_ = 0;
  std::atomic<int> sleepers_{0};
  std::atomic<uint64_t> claims_{0};  // job number in the high half, next item in the low one
  std::atomic<int64_t> done_{0}, items_{0}, helpers_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> work_{nullptr};
};

// Calls work(i) for every i in [0, items), on up to `threads` threads.
template <class Work>
void parallel(int64_t threads, int64_t items, const Work& work) {
  Workers::shared().run(
      threads, items,
      [](const void* erased, int64_t item) { (*static_cast<const Work*>(erased))(item); }, &work);
}

// As above in pieces of `piece` items, for items that are small.
template <class Work>
void parallel(int64_t threads, int64_t items, int64_t piece, const Work& work) {
  parallel(threads, (items + piece - 1) / piece, [&](int64_t p) {
    int64_t end = (p + 1) * piece < items ? (p + 1) * piece : items;
    for (int64_t i = p * piece; i < end; ++i) work(i);
  });
}

}  // namespace octavo
