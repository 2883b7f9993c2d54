/* Norms and scaling of lists of tensors, and the checks that all multi-tensor functions share. */
#include "te/recorded.h"
#include "te/multi_tensor.h"

#include <algorithm>
#include <cmath>

#include "runtime/sums.h"

namespace chagres::reference {

Lists read_lists(const ListArguments &arguments, const std::vector<const char *> &names, const Caller &caller,
                 std::initializer_list<NVTEDType> dtypes) {
  if (arguments.chunk_size <= 0) {
    fail(caller, text("Argument \"chunk_size\" must be above 0, got ", arguments.chunk_size));
  }
  if (arguments.lists != names.size()) {
    fail(caller, text("Expected ", names.size(), " tensor lists, got ", arguments.lists));
  }
  if (arguments.tensors == nullptr) fail(caller, "Argument \"tensor_lists\" must be an array of lists, got NULL");
  Lists lists(names.size());
  for (size_t l = 0; l < names.size(); ++l) {
    if (arguments.tensors[l] == nullptr) fail(caller, text("Tensor list ", l, " (", names[l], ") is NULL"));
    for (size_t j = 0; j < arguments.tensors_per_list; ++j) {
      const std::string name = text(names[l], "[", j, "]");
      lists[l].push_back(view(arguments.tensors[l][j], name.c_str(), dtypes, caller));
      if (lists[l][j].count() == 0) {
        fail(caller, text("Tensor \"", name, "\" has no elements: leave empty tensors out of the lists"));
      }
      expect_count(lists[l][j], name.c_str(), lists[0][j].count(), caller);
    }
  }
  return lists;
}

void *read_cell(NVTETensor handle, const char *argument, NVTEDType dtype, const Caller &caller) {
  const View cell = view(handle, argument, {dtype}, caller);
  expect_count(cell, argument, 1, caller);
  return cell.data;
}

int32_t *read_flag(NVTETensor flag, const char *argument, const Caller &caller) {
  return static_cast<int32_t *>(read_cell(flag, argument, kNVTEInt32, caller));
}

void expect_list_dtype(const std::vector<View> &list, const char *name, NVTEDType dtype, const Caller &caller) {
  for (size_t j = 0; j < list.size(); ++j) expect_dtype(list[j], text(name, "[", j, "]").c_str(), dtype, caller);
}

void expect_moments(const std::vector<View> &first, const std::vector<View> &second, const Caller &caller) {
  for (size_t j = 0; j < first.size(); ++j) {
    const bool allowed = first[j].dtype == kNVTEFloat32 || first[j].dtype == kNVTEBFloat16;
    if (!allowed || first[j].dtype != second[j].dtype || first[j].dtype != first[0].dtype) {
      fail(caller, text("First and second moments must all be Float32 or all BFloat16; tensor ", j, " has ",
                        dtype_name(first[j].dtype), " and ", dtype_name(second[j].dtype)));
    }
  }
}

std::vector<Chunk> cut(const std::vector<View> &list, int64_t size) {
  std::vector<Chunk> chunks;
  for (size_t j = 0; j < list.size(); ++j) {
    for (int64_t first = 0; first < list[j].count(); first += size) {
      chunks.push_back({j, first, std::min(size, list[j].count() - first)});
    }
  }
  return chunks;
}

namespace {

constexpr int64_t kPartials = 320; /* blocks of one launch on the GPU, the elements of "output" that are summed */
constexpr size_t kTensorsALaunch = 110;

CHAGRES_CLONES float sum_of_squares(const float *values, float scale, int64_t count) {
  return lane_sum(count, [&](int64_t i) { return (values[i] * scale) * (values[i] * scale); });
}

struct NormArguments {
  ListArguments lists;
  NVTETensor output, output_per_tensor, ret, ret_per_tensor;
  bool per_tensor;
  int max_chunks_per_tensor;
};

/* Which partial sum each chunk adds to: the block that a launch gives it. A launch ends when it has 320 blocks, when it
 * has 110 tensors, and at the last chunk. */
std::vector<int64_t> block_of_chunks(const std::vector<Chunk> &chunks) {
  std::vector<int64_t> blocks;
  int64_t block = 0;
  size_t tensors = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (block == 0 || chunks[i].tensor != chunks[i - 1].tensor) ++tensors;
    blocks.push_back(block++);
    const bool tensor_ends = i + 1 == chunks.size() || chunks[i + 1].tensor != chunks[i].tensor;
    if (block == kPartials || (tensors == kTensorsALaunch && tensor_ends)) block = 0, tensors = 0;
  }
  return blocks;
}

/* Where the norm of each tensor goes, and the sums of its chunks. */
struct TensorNorms {
  float *cells, *norms;
};

TensorNorms read_tensor_norms(const NormArguments &arguments, const std::vector<Chunk> &chunks, const Caller &caller) {
  const auto tensors = static_cast<int64_t>(arguments.lists.tensors_per_list);
  const int64_t width = arguments.max_chunks_per_tensor;
  const View partial = view(arguments.output_per_tensor, "output_per_tensor", {kNVTEFloat32}, caller);
  const View norms = view(arguments.ret_per_tensor, "ret_per_tensor", {kNVTEFloat32}, caller);
  expect_count(norms, "ret_per_tensor", tensors, caller);
  expect_count(partial, "output_per_tensor", tensors * width, caller);
  for (const Chunk &one : chunks) {
    const int64_t chunk = one.first / arguments.lists.chunk_size;
    if (chunk >= width) {
      fail(caller, text("Argument \"max_chunks_per_tensor\" must be at least ", chunk + 1, ", got ", width));
    }
  }
  return {static_cast<float *>(partial.data), static_cast<float *>(norms.data)};
}

void norms_per_tensor(const NormArguments &arguments, const std::vector<Chunk> &chunks, const std::vector<float> &sums,
                      const TensorNorms &results) {
  const int64_t width = arguments.max_chunks_per_tensor;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t chunk = chunks[i].first / arguments.lists.chunk_size;
    results.cells[static_cast<int64_t>(chunks[i].tensor) * width + chunk] = sums[i];
  }
  for (int64_t j = 0; j < static_cast<int64_t>(arguments.lists.tensors_per_list); ++j) {
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += results.cells[j * width + i];
    results.norms[j] = std::sqrt(sum);
  }
}

/* ret = sqrt(sum of squares of scale * x + what "output" held before) */
void l2norm(const NormArguments &arguments, float scale, const Caller &caller) {
  const Lists lists = read_lists(arguments.lists, {"x"}, caller);
  int32_t *flag = read_flag(arguments.lists.flag, "noop_flag", caller);
  const View output = view(arguments.output, "output", {kNVTEFloat32}, caller);
  if (output.count() < kPartials) {
    fail(caller, text("Tensor \"output\" must have at least ", kPartials, " elements, got ", output.count()));
  }
  auto *ret = static_cast<float *>(read_cell(arguments.ret, "ret", kNVTEFloat32, caller));
  const std::vector<Chunk> chunks = cut(lists[0], arguments.lists.chunk_size);
  const TensorNorms results = arguments.per_tensor ? read_tensor_norms(arguments, chunks, caller) : TensorNorms{};
  std::vector<float> sums(chunks.size());
  parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Chunk &chunk = chunks[static_cast<size_t>(i)];
      Scratch run(chunk.count);
      load_chunk(run.data(), lists[0], chunk);
      sums[static_cast<size_t>(i)] = sum_of_squares(run.data(), scale, chunk.count);
    }
  });
  const std::vector<int64_t> blocks = block_of_chunks(chunks);
  auto *partial = static_cast<float *>(output.data);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!std::isfinite(sums[i])) *flag = 1;
    partial[blocks[i]] += sums[i];
  }
  float sum = 0;
  for (int64_t i = 0; i < kPartials; ++i) sum += partial[i];
  *ret = std::sqrt(sum);
  if (arguments.per_tensor) norms_per_tensor(arguments, chunks, sums, results);
}

CHAGRES_CLONES bool scale_run(float *values, float scale, int64_t count) {
  /* x - x is 0 for finite x, else NaN. */
  float unfinished = 0;
  for (int64_t i = 0; i < count; ++i) {
    unfinished += (values[i] - values[i]) == 0 ? 0.0f : 1.0f;
    values[i] *= scale;
  }
  return unfinished == 0;
}

void scale_lists(const ListArguments &arguments, float scale, const Caller &caller) {
  const Lists lists = read_lists(arguments, {"in", "out"}, caller);
  int32_t *flag = read_flag(arguments.flag, "is_infinite", caller);
  const std::vector<Chunk> chunks = cut(lists[0], 16384);
  std::vector<char> finite(chunks.size());
  parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Chunk &chunk = chunks[static_cast<size_t>(i)];
      Scratch run(chunk.count);
      load_chunk(run.data(), lists[0], chunk);
      finite[static_cast<size_t>(i)] = scale_run(run.data(), scale, chunk.count);
      store_chunk(lists[1], chunk, run.data());
    }
  });
  if (std::find(finite.begin(), finite.end(), 0) != finite.end()) *flag = 1;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_multi_tensor_l2norm_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                   size_t num_tensor_lists, size_t num_tensors_per_list, NVTETensor output,
                                   NVTETensor output_per_tensor, NVTETensor ret, NVTETensor ret_per_tensor,
                                   int per_tensor, int max_chunks_per_tensor, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_l2norm_cuda, chunk_size, noop_flag, TensorLists{tensor_lists, num_tensor_lists,
               num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, output, output_per_tensor, ret,
               ret_per_tensor, per_tensor, max_chunks_per_tensor, stream)) return;
  l2norm({{chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
          output, output_per_tensor, ret, ret_per_tensor, per_tensor != 0, max_chunks_per_tensor},
         1, Caller::here());
}

void nvte_multi_tensor_unscale_l2norm_cuda(int chunk_size, NVTETensor noop_flag, NVTETensor **tensor_lists,
                                           size_t num_tensor_lists, size_t num_tensors_per_list, NVTETensor output,
                                           NVTETensor output_per_tensor, NVTETensor ret, NVTETensor ret_per_tensor,
                                           NVTETensor inv_scale, int per_tensor, int max_chunks_per_tensor,
                                           cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_unscale_l2norm_cuda, chunk_size, noop_flag, TensorLists{tensor_lists,
               num_tensor_lists, num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, output,
               output_per_tensor, ret, ret_per_tensor, inv_scale, per_tensor, max_chunks_per_tensor, stream)) return;
  const Caller caller = Caller::here();
  const float scale = *static_cast<const float *>(read_cell(inv_scale, "inv_scale", kNVTEFloat32, caller));
  l2norm({{chunk_size, noop_flag, tensor_lists, num_tensor_lists, num_tensors_per_list},
          output, output_per_tensor, ret, ret_per_tensor, per_tensor != 0, max_chunks_per_tensor},
         scale, caller);
}

void nvte_multi_tensor_scale_cuda(int chunk_size, NVTETensor is_infinite, NVTETensor **tensor_lists,
                                  size_t num_tensor_lists, size_t num_tensors_per_list, float scale, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_scale_cuda, chunk_size, is_infinite, TensorLists{tensor_lists, num_tensor_lists,
               num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, scale, stream)) return;
  scale_lists({chunk_size, is_infinite, tensor_lists, num_tensor_lists, num_tensors_per_list}, scale, Caller::here());
}

void nvte_multi_tensor_scale_tensor_cuda(int chunk_size, NVTETensor is_infinite, NVTETensor **tensor_lists,
                                         size_t num_tensor_lists, size_t num_tensors_per_list, NVTETensor scale,
                                         cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_scale_tensor_cuda, chunk_size, is_infinite, TensorLists{tensor_lists,
               num_tensor_lists, num_tensors_per_list}, num_tensor_lists, num_tensors_per_list, scale,
               stream)) return;
  const Caller caller = Caller::here();
  scale_lists({chunk_size, is_infinite, tensor_lists, num_tensor_lists, num_tensors_per_list},
              *static_cast<const float *>(read_cell(scale, "scale", kNVTEFloat32, caller)), caller);
}
