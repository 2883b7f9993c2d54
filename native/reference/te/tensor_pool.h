/* What the pool of tensor handles offers to the functions that get and set a tensor's records. */
#ifndef CHAGRES_TENSOR_POOL_H
#define CHAGRES_TENSOR_POOL_H

#include "runtime/reference.h"

namespace chagres::reference {

/* What a record is before it was set. */
NVTEBasicTensor absent_record();

/* A tensor of such records: what getters answer for a handle that is not alive. */
const Tensor &absent_tensor();

/* null when the handle is not alive. Takes no lock. */
Tensor *find_tensor(NVTETensor handle);

}  // namespace chagres::reference

#endif /* CHAGRES_TENSOR_POOL_H */
