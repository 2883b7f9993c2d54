/* Matrix products through OpenBLAS, opened at first use. */
#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/reference.h"

namespace chagres::reference {

namespace {

/* cblas.h's prototype and values. */
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                       int lda, const float *b, int ldb, float beta, float *c, int ldc);
constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

std::string own_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::vector<std::string> candidates() {
  const char *named = std::getenv("CHAGRES_OPENBLAS");
  if (named != nullptr && *named != '\0') return {named};
  const std::string folder = own_folder();
  std::vector<std::string> places;
  for (const char *name : {"libopenblas_nolapack.so.0", "libopenblas.so.0"}) {
    if (!folder.empty()) places.push_back(folder + name);
  }
  for (const char *name : {"libopenblas_nolapack.so.0", "libopenblas.so.0"}) places.push_back(name);
  return places;
}

/* OpenBLAS needs the Fortran runtime, which is not on every machine and does not look in its own folder. */
void open_neighbours(const std::string &place) {
  const size_t slash = place.rfind('/');
  if (slash == std::string::npos) return;
  for (const char *name : {"libquadmath.so.0", "libgfortran.so.5"}) {
    dlopen((place.substr(0, slash + 1) + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

Sgemm open_openblas() {
  std::string tried;
  for (const std::string &place : candidates()) {
    open_neighbours(place);
    void *library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      tried += "\n  " + place + ": " + dlerror();
      continue;
    }
    auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
    if (sgemm == nullptr) {
      tried += "\n  " + place + ": opened, but it has no cblas_sgemm";
      continue;
    }
    /* parallel_for brings the threads: ranks and attention heads call at the same time. */
    auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
    if (set_threads != nullptr) set_threads(1);
    return sgemm;
  }
  CHAGRES_CHECK(false, "OpenBLAS is needed for matrix products and was not found. Put libopenblas_nolapack.so.0 or "
                "libopenblas.so.0 beside this library, install it (Debian: libopenblas0), or set CHAGRES_OPENBLAS to "
                "its path. Tried:", tried);
  return nullptr;
}

Sgemm openblas() {
  static const Sgemm function = open_openblas(); /* tried again by the next call when it throws */
  return function;
}

}  // namespace

void sgemm(Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
           int64_t ldb, float beta, float *c, int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
    }
    return;
  }
  CHAGRES_CHECK(std::max({m, n, k, lda, ldb, ldc}) <= INT_MAX,
                "Matrix product of ", m, " x ", n, " x ", k, ": a dimension is above ", INT_MAX);
  openblas()(kRowMajor, op_a == Op::T ? kTranspose : kNoTranspose, op_b == Op::T ? kTranspose : kNoTranspose,
             static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b,
             static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}

void parallel_sgemm(Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  constexpr int64_t kRows = 128, kColumns = 512;
  const int64_t column_blocks = (n - 1) / kColumns + 1;
  const int64_t row_blocks = (m - 1) / kRows + 1;
  parallel_for(0, row_blocks * column_blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block / column_blocks * kRows;
      const int64_t column = block % column_blocks * kColumns;
      sgemm(op_a, op_b, std::min(kRows, m - row), std::min(kColumns, n - column), k, alpha,
            op_a == Op::N ? a + row * lda : a + row, lda, op_b == Op::N ? b + column : b + column * ldb, ldb, beta,
            c + row * ldc + column, ldc);
    }
  });
}

}  // namespace chagres::reference
