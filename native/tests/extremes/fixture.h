/* What the arguments of one call point to: made for the call, gone after it. */
#ifndef CHAGRES_TESTS_EXTREMES_FIXTURE_H
#define CHAGRES_TESTS_EXTREMES_FIXTURE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "chagres/te.h"

namespace extremes {

/* ncclUniqueId: by value across the interface. */
struct UniqueId {
  char internal[128];
};

class Fixture {
 public:
  Fixture();
  ~Fixture();
  Fixture(const Fixture &) = delete;
  Fixture &operator=(const Fixture &) = delete;

  /* Device memory of exactly so many bytes, all of them `byte`. */
  void *device(size_t bytes, int byte = 0);
  template <class T>
  T *device_values(std::initializer_list<T> values) {
    return static_cast<T *>(copy(device(values.size() * sizeof(T)), values.begin(), values.size() * sizeof(T)));
  }

  /* Host memory of exactly so many bytes, zero. */
  void *host(size_t bytes);
  template <class T>
  T *out(size_t count = 1) {
    return static_cast<T *>(host(count * sizeof(T)));
  }
  template <class T>
  T *values(std::initializer_list<T> values) {
    return static_cast<T *>(copy(out<T>(values.size()), values.begin(), values.size() * sizeof(T)));
  }

  /* Tensors: with data (bytes of 0, which is 0 in every type), with given numbers, without data. */
  NVTETensor tensor(NVTEDType dtype, std::initializer_list<size_t> shape);
  NVTETensor tensor(NVTEDType dtype, const NVTEShape &shape);
  NVTETensor f32(std::initializer_list<size_t> shape) { return tensor(kNVTEFloat32, shape); }
  NVTETensor bf16(std::initializer_list<size_t> shape) { return tensor(kNVTEBFloat16, shape); }
  NVTETensor int32s(std::initializer_list<int32_t> values);
  NVTETensor int64s(std::initializer_list<int64_t> values);
  NVTETensor floats(std::initializer_list<float> values);
  NVTETensor unset();
  NVTETensor *handles(std::initializer_list<NVTETensor> tensors);
  NVTETensor **lists(std::initializer_list<NVTETensor *> lists);
  /* The workspace that `call` asks for when it is given one without data. */
  NVTETensor workspace(const std::function<int(NVTETensor)> &call);
  NVTETensorPack *pack();
  /* Gives every tensor of a pack the memory that its shape asks for. */
  void fill(NVTETensorPack *pack);

  NVTEQuantizationConfig quantization_config();
  NVTEMatmulConfig matmul_config();
  NVTEFusedAttnConfig fused_attn_config();
  NVTEFusedAttnFwdParams fused_attn_fwd_params();
  NVTEFusedAttnBwdParams fused_attn_bwd_params();

  void *stream();
  void *event(bool recorded = false);
  void *comm(); /* of one rank */
  UniqueId id();

  /* Frees with the fixture what the call under test makes. */
  void finally(std::function<void()> action) { actions_.push_back(std::move(action)); }

  /* The call fails to get memory from its `number`-th request on (0: its first). */
  void starve(int number) { starve_at_ = number; }
  bool starved() const { return starved_; }
  bool is_starved_on_purpose() const { return starve_at_ >= 0; }
  std::string description() const;
  void before_call();
  void after_call();

  /* Memory that the call frees holds nothing that can be looked at afterwards. */
  void *to_free(void *memory);
  /* What lies in the memory of the arguments, in the order in which it was taken. */
  struct Content {
    std::string bytes;
    bool on_device;
    bool operator==(const Content &other) const { return bytes == other.bytes; }
    bool operator!=(const Content &other) const { return bytes != other.bytes; }
  };
  using Contents = std::vector<Content>;
  Contents contents() const;
  const Contents &contents_before() const { return before_; }

 private:
  struct Memory {
    const void *start;
    size_t bytes;
    bool on_device;
  };

  static void *copy(void *target, const void *source, size_t bytes);
  template <class Create, class Destroy>
  void *made(Create create, Destroy destroy);
  void set(NVTETensor tensor, NVTEDType dtype, const NVTEShape &shape, void *data);

  std::vector<std::function<void()>> actions_;
  std::vector<Memory> memory_;
  Contents before_; /* the call */
  int starve_at_ = -1;
  bool starved_ = false;
};

}  // namespace extremes

#endif /* CHAGRES_TESTS_EXTREMES_FIXTURE_H */
