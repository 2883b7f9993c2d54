/*
 * Which handles are live. The guard sees every handle's creation and destruction, so that it can refuse one that was
 * never made, was destroyed, or is of another kind, which Transformer Engine would follow into wild memory.
 *
 * Threading: any thread. Reading takes no lock.
 */
#ifndef CHAGRES_GUARD_HANDLES_HPP
#define CHAGRES_GUARD_HANDLES_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace chagres::guard {

enum class Kind : unsigned {
  tensor,
  grouped_tensor,
  quantization_config,
  matmul_config,
  grouped_matmul_config,
  fused_attn_config,
  fused_attn_fwd_params,
  fused_attn_bwd_params,
  comm_gemm_context,
  cusolvermp_context,
  count
};

/* Name of the kind in messages, such as "NVTETensor". */
const char *name_of(Kind kind);

/* Transformer Engine's tensor handles are small numbers and index this table; other handles are addresses. */
constexpr std::size_t slot_count = std::size_t{1} << 20;
extern std::atomic<std::uint8_t> tensor_slots[2][slot_count];

bool is_live_address(Kind kind, std::uintptr_t value);

inline bool is_live(Kind kind, const void *handle) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (kind <= Kind::grouped_tensor && value < slot_count) {
    return tensor_slots[static_cast<unsigned>(kind)][value].load(std::memory_order_relaxed) != 0;
  }
  return is_live_address(kind, value);
}

/* Marks a handle as live. Throws std::runtime_error when the table of addresses is full. */
void add(Kind kind, void *handle);

/* Marks a handle as dead; false when it was not live. Of two threads that destroy one handle, one gets true. */
bool remove(Kind kind, void *handle);

}  // namespace chagres::guard

#endif
