/* parallel_for, Scratch and the matrix product. */
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "check.h"

using namespace chagres::reference;

TEST(pieces_cover_the_range_once) {
  for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> hits(count);
      std::mutex mutex;
      std::set<int64_t> starts;
      parallel_for(5, 5 + count, grain, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) ++hits[i - 5];
        EXPECT((first - 5) % grain == 0 && (last - first == grain || last == 5 + count));
        std::lock_guard<std::mutex> lock(mutex);
        starts.insert(first);
      });
      for (int64_t i = 0; i < count; ++i) EXPECT_EQUAL(hits[i].load(), 1);
      EXPECT_EQUAL(static_cast<int64_t>(starts.size()), (count + grain - 1) / grain);
    }
  }
}

TEST(calls_nest_and_run_from_many_threads) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        parallel_for(0, 10, 1, [&](int64_t first, int64_t last) {
          for (int64_t i = first; i < last; ++i) {
            parallel_for(0, 100, 7, [&](int64_t a, int64_t b) { total += b - a; });
          }
        });
      }
    });
  }
  for (std::thread &caller : callers) caller.join();
  EXPECT_EQUAL(total.load(), int64_t{8 * 20 * 10 * 100});
}

TEST(the_first_failing_piece_is_rethrown) {
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROWS(parallel_for(0, 100, 1,
                               [](int64_t first, int64_t) {
                                 if (first >= 40) throw std::runtime_error("piece " + std::to_string(first) + ".");
                               }),
                  "piece 40.");
  }
}

TEST(scratch_nests) {
  Scratch first(100);
  Scratch second(100);
  EXPECT(first.data() != second.data());
  EXPECT_EQUAL(reinterpret_cast<uintptr_t>(first.data()) % 64, uintptr_t{0});
#if !defined(__SANITIZE_ADDRESS__) /* there each has memory of its own */
  float *reused;
  {
    Scratch third(1000);
    reused = third.data();
  }
  Scratch fourth(999);
  EXPECT(fourth.data() == reused);
#endif
  Scratch empty(0);
  EXPECT(empty.data() != nullptr);
}

TEST(product_against_double) {
  for (const int64_t m : {1, 3, 127, 130}) {
    for (const int64_t n : {1, 17, 513}) {
      for (const int64_t k : {0, 1, 33}) {
        for (const Op op_a : {Op::N, Op::T}) {
          for (const Op op_b : {Op::N, Op::T}) {
            std::normal_distribution<float> normal;
            std::vector<float> a(m * k), b(k * n), c(m * n, NAN);
            for (float &value : a) value = normal(check::random());
            for (float &value : b) value = normal(check::random());
            const int64_t lda = std::max<int64_t>(op_a == Op::N ? k : m, 1), ldb = std::max<int64_t>(op_b == Op::N ? n : k, 1);
            parallel_sgemm(op_a, op_b, m, n, k, 2, a.data(), lda, b.data(), ldb, 0, c.data(), n);
            parallel_sgemm(op_a, op_b, m, n, k, 1, a.data(), lda, b.data(), ldb, 3, c.data(), n);
            std::vector<double> expected(m * n);
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                double sum = 0;
                for (int64_t l = 0; l < k; ++l) {
                  sum += static_cast<double>(op_a == Op::N ? a[i * lda + l] : a[l * lda + i]) *
                         (op_b == Op::N ? b[l * ldb + j] : b[j * ldb + l]);
                }
                expected[i * n + j] = 7 * sum;
              }
            }
            EXPECT_CLOSE(std::vector<double>(c.begin(), c.end()), expected, 1e-5, 1e-4);
          }
        }
      }
    }
  }
}

TEST(product_has_equal_bits_every_time) {
  const int64_t m = 300, n = 700, k = 100;
  std::normal_distribution<float> normal;
  std::vector<float> a(m * k), b(k * n), first(m * n), again(m * n);
  for (float &value : a) value = normal(check::random());
  for (float &value : b) value = normal(check::random());
  parallel_sgemm(Op::N, Op::N, m, n, k, 1, a.data(), k, b.data(), n, 0, first.data(), n);
  for (int round = 0; round < 5; ++round) {
    parallel_sgemm(Op::N, Op::N, m, n, k, 1, a.data(), k, b.data(), n, 0, again.data(), n);
    EXPECT(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
  }
}
