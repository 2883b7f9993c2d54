/* Attention as one operation, O = softmax(scale Q K^T) V, and its gradients; heads of keys serve groups of queries. */
#include <cmath>
#include <limits>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

/* Names of attributes: 0 where an operation has none. */
struct Names {
  int q, k, v, o, stats, scale, q_lengths, k_lengths;
};

constexpr Names kForward = {2800, 2801, 2802, 2803, 2804, 2805, 2809, 2810};
constexpr Names kBackward = {2851, 2852, 2853, 2854, 2855, 2856, 2857, 2858};
constexpr int kDq = 2859, kDk = 2860, kDv = 2861, kDo = 2862;

const Names &names(const Descriptor &operation) { return operation.type == kSdpaForward ? kForward : kBackward; }

/* One head of one sequence: where its rows begin, and how many tokens it has. */
struct Head {
  int64_t q, k, v, o, row, queries, keys;
};

/* What both directions share. */
class Attention {
 public:
  Attention(Evaluation &values, const Descriptor &operation)
      : n_(names(operation)),
        q(values.read(operation, n_.q)),
        k(values.read(operation, n_.k)),
        v(values.read(operation, n_.v)),
        rows(q.dims[2]),
        columns(k.dims[2]),
        width(q.dims[3]),
        value_width(v.dims[3]),
        scale(operation.has(n_.scale) ? values.scalar(operation, n_.scale) : 1) {
    const Array *queries = operation.has(n_.q_lengths) ? &values.read(operation, n_.q_lengths) : nullptr;
    const Array *keys = operation.has(n_.k_lengths) ? &values.read(operation, n_.k_lengths) : nullptr;
    for (int64_t b = 0; b < q.dims[0]; ++b)
      for (int64_t h = 0; h < q.dims[1]; ++h) {
        const int64_t index = b * q.dims[1] + h;
        const int64_t key_head = b * k.dims[1] + h * k.dims[1] / q.dims[1];
        const int64_t value_head = b * v.dims[1] + h * v.dims[1] / q.dims[1];
        heads.push_back({index * rows * width, key_head * columns * width, value_head * columns * value_width,
                         index * rows * value_width, index * rows, tokens(queries, b, rows), tokens(keys, b, columns)});
      }
  }

  /* The scaled products of one query with the keys of its sequence. */
  void scores(const Head &head, int64_t row, std::vector<double> &into) const {
    for (int64_t j = 0; j < head.keys; ++j) into[static_cast<size_t>(j)] = scale * dot(head, row, j);
  }

 private:
  const Names &n_;

  static int64_t tokens(const Array *lengths, int64_t sequence, int64_t most) {
    if (lengths == nullptr) return most;
    const double length = lengths->values[static_cast<size_t>(sequence)];
    return length > 0 ? static_cast<int64_t>(std::min(length, static_cast<double>(most))) : 0;
  }

  double dot(const Head &head, int64_t row, int64_t column) const {
    const double *left = q.values.data() + head.q + row * width, *right = k.values.data() + head.k + column * width;
    double sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += left[d] * right[d];
    return sum;
  }

 public:
  const Array &q, &k, &v;
  const int64_t rows, columns, width, value_width;
  const double scale;
  std::vector<Head> heads;
};

}  // namespace

void check_sdpa(const Descriptor &operation) {
  const Names &n = names(operation);
  const Dims &q = operation.spec(n.q).dims, &k = operation.spec(n.k).dims, &v = operation.spec(n.v).dims;
  CHAGRES_REQUIRE(q.size() == 4 && k.size() == 4 && v.size() == 4 && k[0] == q[0] && v[0] == q[0] && k[3] == q[3] &&
                      v[2] == k[2] && q[1] % k[1] == 0 && q[1] % v[1] == 0,
                  kShapeMismatch, descriptor_name(operation.type),
                  ": expected Q[B, H, Sq, D], K[B, Hk, Skv, D], V[B, Hv, Skv, Dv], got ", operation.spec(n.q).text(),
                  ", ", operation.spec(n.k).text(), ", ", operation.spec(n.v).text());
  for (const int name : {2807, 2808})
    CHAGRES_REQUIRE(!operation.has(name), kNotSupported, attribute(kSdpaForward, name).text,
                    ": pages are loaded by CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR in the CPU reference");
  require_dims(operation, n.o, {q[0], q[1], q[2], v[3]});
  require_dims(operation, n.stats, {q[0], q[1], q[2], 1});
  require_dims(operation, n.q_lengths, {q[0], 1, 1, 1});
  require_dims(operation, n.k_lengths, {q[0], 1, 1, 1});
  CHAGRES_REQUIRE(!operation.has(n.scale) || count_of(operation.spec(n.scale).dims) == 1, kShapeMismatch,
                  attribute(operation.type, n.scale).text, ": expected a tensor of one element");
  if (operation.type == kSdpaForward) return;
  require_dims(operation, kDo, operation.spec(n.o).dims);
  require_dims(operation, kDq, q);
  require_dims(operation, kDk, k);
  require_dims(operation, kDv, v);
}

void compute_sdpa_forward(Evaluation &values, const Descriptor &operation) {
  const Attention a(values, operation);
  Array o(operation.spec(kForward.o).dims), stats({a.q.dims[0], a.q.dims[1], a.rows, 1});
  parallel_for(0, static_cast<int64_t>(a.heads.size()), 1, [&](int64_t first, int64_t last) {
    std::vector<double> row(static_cast<size_t>(a.columns));
    for (int64_t h = first; h < last; ++h) {
      const Head &head = a.heads[static_cast<size_t>(h)];
      for (int64_t i = 0; i < head.queries; ++i) {
        a.scores(head, i, row);
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t j = 0; j < head.keys; ++j) most = std::max(most, row[static_cast<size_t>(j)]);
        double *out = o.values.data() + head.o + i * a.value_width;
        for (int64_t j = 0; j < head.keys; ++j) {
          const double power = std::exp(row[static_cast<size_t>(j)] - most);
          const double *value = a.v.values.data() + head.v + j * a.value_width;
          sum += power;
          for (int64_t d = 0; d < a.value_width; ++d) out[d] += power * value[d];
        }
        for (int64_t d = 0; d < a.value_width && head.keys > 0; ++d) out[d] /= sum;
        stats.values[static_cast<size_t>(head.row + i)] = most + std::log(sum);
      }
    }
  });
  values.write(operation, kForward.o, std::move(o));
  if (operation.has(kForward.stats)) values.write(operation, kForward.stats, std::move(stats));
}

/* Heads of queries that share a head of keys add to its gradients, so they run one after the other. */
void compute_sdpa_backward(Evaluation &values, const Descriptor &operation) {
  const Attention a(values, operation);
  const Array &o = values.read(operation, kBackward.o), &stats = values.read(operation, kBackward.stats);
  const Array &output_gradient = values.read(operation, kDo);
  Array dq(a.q.dims), dk(a.k.dims), dv(a.v.dims);
  std::vector<double> row(static_cast<size_t>(a.columns));
  for (const Head &head : a.heads)
    for (int64_t i = 0; i < head.queries; ++i) {
      a.scores(head, i, row);
      const double *out = o.values.data() + head.o + i * a.value_width;
      const double *gradient = output_gradient.values.data() + head.o + i * a.value_width;
      double along = 0;
      for (int64_t d = 0; d < a.value_width; ++d) along += out[d] * gradient[d];
      for (int64_t j = 0; j < head.keys; ++j) {
        const double share = std::exp(row[static_cast<size_t>(j)] - stats.values[static_cast<size_t>(head.row + i)]);
        const int64_t value = head.v + j * a.value_width, key = head.k + j * a.width, query = head.q + i * a.width;
        double against = 0;
        for (int64_t d = 0; d < a.value_width; ++d) {
          against += gradient[d] * a.v.values[static_cast<size_t>(value + d)];
          dv.values[static_cast<size_t>(value + d)] += share * gradient[d];
        }
        const double ds = a.scale * share * (against - along);
        for (int64_t d = 0; d < a.width; ++d) {
          dq.values[static_cast<size_t>(query + d)] += ds * a.k.values[static_cast<size_t>(key + d)];
          dk.values[static_cast<size_t>(key + d)] += ds * a.q.values[static_cast<size_t>(query + d)];
        }
      }
    }
  values.write(operation, kDq, std::move(dq));
  values.write(operation, kDk, std::move(dk));
  values.write(operation, kDv, std::move(dv));
}

}  // namespace chagres::reference::cudnn
