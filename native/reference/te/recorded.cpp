/* What recorded calls keep of tensors and configurations. */
#include "te/recorded.h"

#include <map>

#include "te/config.h"
#include "te/tensor_pool.h"

namespace chagres::reference {

namespace {

thread_local std::map<NVTETensor, std::shared_ptr<void>> kept_already;

void destroy(NVTETensor handle) noexcept {
  try {
    nvte_destroy_tensor(handle);
  } catch (const std::exception &) { /* destroyed by whoever has guessed the handle */
  }
}

std::shared_ptr<void> kept_tensor(NVTETensor handle) {
  if (const auto found = kept_already.find(handle); found != kept_already.end()) return found->second;
  const Tensor values = tensor(handle, "tensor");
  std::shared_ptr<void> kept(nvte_create_tensor(values.scaling_mode), destroy);
  *find_tensor(kept.get()) = values;
  return kept_already[handle] = kept;
}

}  // namespace

std::shared_ptr<void> kept_handle(void *handle) {
  if (handle == nullptr) return nullptr;
  if (find_tensor(handle) != nullptr) return kept_tensor(handle);
  std::shared_ptr<void> config = kept_config(handle, kept_handle);
  return config != nullptr ? config : std::shared_ptr<void>(handle, [](void *) {});
}

OneCall::OneCall() { kept_already.clear(); }

OneCall::~OneCall() { kept_already.clear(); }

bool asks(NVTETensor workspace) {
  const Tensor *found = find_tensor(workspace);
  return found != nullptr && (found->data().data_ptr == nullptr || element_count(found->data().shape) == 0);
}

}  // namespace chagres::reference
