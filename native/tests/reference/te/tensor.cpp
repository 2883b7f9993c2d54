/* Tensor and configuration handles: life, records, error texts. */
#include <set>
#include <thread>

#include "check.h"

using namespace chagres::reference;

namespace {

NVTEBasicTensor basic(void *data, NVTEDType dtype, std::vector<size_t> dimensions) {
  return {data, dtype, nvte_make_shape(dimensions.data(), dimensions.size())};
}

}  // namespace

TEST(a_fresh_tensor_is_unset) {
  check::Unset fresh;
  EXPECT(nvte_tensor_data(fresh) == nullptr);
  EXPECT_EQUAL(nvte_tensor_type(fresh), kNVTEFloat32);
  EXPECT_EQUAL(nvte_tensor_ndims(fresh), size_t{1});
  EXPECT_EQUAL(nvte_tensor_size(fresh, 0), size_t{0});
  EXPECT_EQUAL(nvte_tensor_numel(fresh), size_t{0});
  EXPECT_EQUAL(nvte_tensor_size_bytes(fresh), size_t{0});
  EXPECT(nvte_tensor_amax(fresh) == nullptr && nvte_tensor_scale(fresh) == nullptr);
  EXPECT_EQUAL(nvte_tensor_scaling_mode(fresh), NVTE_DELAYED_TENSOR_SCALING);
  EXPECT(!tensor(fresh, "fresh").has(kNVTERowwiseData));
}

TEST(records_come_back) {
  check::Array array({3, 5}, kNVTEBFloat16);
  EXPECT_EQUAL(nvte_tensor_size_bytes(array), size_t{30});
  EXPECT_EQUAL(nvte_tensor_element_size(array), size_t{2});
  float cell = 0;
  for (int parameter = 0; parameter < 7; ++parameter) {
    const NVTEBasicTensor record = basic(&cell, kNVTEFloat32, {1});
    nvte_set_tensor_param_v2(array, static_cast<NVTETensorParam>(parameter), &record, sizeof(record));
    NVTEBasicTensor read;
    size_t written = 0;
    nvte_get_tensor_param_v2(array, static_cast<NVTETensorParam>(parameter), &read, sizeof(read), &written);
    EXPECT_EQUAL(written, sizeof(NVTEBasicTensor));
    EXPECT(read.data_ptr == &cell && read.dtype == kNVTEFloat32 && same_shape(read.shape, record.shape));
  }
  EXPECT(nvte_tensor_amax(array) == &cell && nvte_tensor_scale(array) == &cell && nvte_tensor_scale_inv(array) == &cell);
  const uint8_t flag = 7;
  uint8_t read_flag = 0;
  nvte_set_tensor_param_v2(array, kNVTEWithGEMMSwizzledScales, &flag, 1);
  nvte_get_tensor_param_v2(array, kNVTEWithGEMMSwizzledScales, &read_flag, 1, nullptr);
  EXPECT_EQUAL(read_flag, uint8_t{1});
  const int32_t maximum = 256, wrong = 300;
  int32_t read_maximum = 0;
  nvte_set_tensor_param_v2(array, kNVTENVFP4E4M3Max, &maximum, 4);
  nvte_get_tensor_param_v2(array, kNVTENVFP4E4M3Max, &read_maximum, 4, nullptr);
  EXPECT_EQUAL(read_maximum, 256);
  EXPECT_THROWS(nvte_set_tensor_param_v2(array, kNVTENVFP4E4M3Max, &wrong, 4), "448 or 256", "300");
}

TEST(columnwise_shape_is_rotated_back) {
  uint16_t data[30];
  check::Unset transposed;
  const NVTEBasicTensor record = basic(data, kNVTEBFloat16, {5, 2, 3});
  nvte_set_tensor_param_v2(transposed, kNVTEColumnwiseData, &record, sizeof(record));
  EXPECT_EQUAL(shape_text(nvte_tensor_shape(transposed)), std::string("(2, 3, 5)"));
  EXPECT_EQUAL(shape_text(nvte_tensor_columnwise_shape(transposed)), std::string("(5, 2, 3)"));
  EXPECT_EQUAL(nvte_tensor_type(transposed), kNVTEBFloat16);
}

TEST(a_destroyed_handle_is_recognized_also_after_reuse) {
  NVTETensor first = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_destroy_tensor(first);
  EXPECT_THROWS(nvte_destroy_tensor(first), "Invalid tensor.", "destroyed already");
  NVTETensor second = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor third = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  EXPECT(second != third && second != first);
  EXPECT_THROWS(nvte_destroy_tensor(first), "Invalid tensor.");
  EXPECT_THROWS(nvte_tensor_shape(first), "nvte_tensor_shape", "Invalid tensor.", "\"tensor\"");
  EXPECT(nvte_tensor_data(first) == nullptr);
  NVTETensor both[] = {second, first, third, nullptr};
  EXPECT_THROWS(nvte_destroy_tensors(both, 4), "Invalid tensor.");
  EXPECT_THROWS(nvte_destroy_tensor(third), "Invalid tensor."); /* was destroyed by the call that threw */
  nvte_destroy_tensor(nullptr);
  EXPECT_THROWS(nvte_tensor_shape(reinterpret_cast<NVTETensor>(uintptr_t{1} << 40)), "Invalid tensor.");
  EXPECT_THROWS(nvte_tensor_shape(reinterpret_cast<NVTETensor>(~uintptr_t{0})), "Invalid tensor.");
}

TEST(packs) {
  NVTETensorPack pack{};
  nvte_tensor_pack_create(&pack);
  std::set<NVTETensor> distinct(std::begin(pack.tensors), std::end(pack.tensors));
  EXPECT_EQUAL(distinct.size(), size_t{10});
  nvte_tensor_pack_destroy(&pack);
  EXPECT_THROWS(nvte_tensor_pack_destroy(&pack), "Invalid tensor.");
  EXPECT_THROWS(nvte_tensor_pack_create(nullptr), "\"pack\"", "NULL");
  EXPECT_EQUAL(sizeof(NVTETensorPack), size_t{88});
  EXPECT_EQUAL(sizeof(NVTEBasicTensor), size_t{144});
}

TEST(threads_get_distinct_handles) {
  std::vector<std::vector<NVTETensor>> handles(8);
  std::vector<std::thread> threads;
  for (auto &own : handles) {
    threads.emplace_back([&own] {
      for (int i = 0; i < 1000; ++i) {
        own.push_back(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
        if (i % 2 == 0) {
          nvte_destroy_tensor(own.back());
          own.pop_back();
        }
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  std::set<NVTETensor> all;
  for (auto &own : handles) all.insert(own.begin(), own.end());
  EXPECT_EQUAL(all.size(), size_t{4000});
  for (auto &own : handles) nvte_destroy_tensors(own.data(), own.size());
}

TEST(the_pool_ends_with_a_text) {
  std::vector<NVTETensor> many(30000);
  EXPECT_THROWS(nvte_create_tensors(NVTE_DELAYED_TENSOR_SCALING, many.data(), many.size()), "20321",
                "NVTE_TENSOR_HANDLE_POOL_SIZE_MB");
  EXPECT_THROWS(nvte_create_tensors(NVTE_DELAYED_TENSOR_SCALING, nullptr, 3), "\"tensors\"", "NULL");
}

TEST(bad_parameters_are_named) {
  check::Unset target;
  NVTEBasicTensor record = basic(nullptr, kNVTEFloat32, {0});
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, static_cast<NVTETensorParam>(10), &record, 144), "NVTETensorParam", "10");
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, static_cast<NVTETensorParam>(-1), &record, 144), "NVTETensorParam", "-1");
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, kNVTEAmax, &record, 143), "needs 144 bytes, got 143");
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, kNVTEAmax, nullptr, 144), "NULL");
  EXPECT_THROWS(nvte_set_tensor_param_v2(nullptr, kNVTEAmax, &record, 144), "Invalid tensor.");
  record.shape.ndim = 16;
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, kNVTERowwiseData, &record, 144), "at most 15", "16");
  record = basic(nullptr, static_cast<NVTEDType>(11), {1});
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, kNVTERowwiseData, &record, 144), "dtype", "11");
  record = basic(nullptr, kNVTEFloat32, {size_t{1} << 40, size_t{1} << 40});
  EXPECT_THROWS(nvte_set_tensor_param_v2(target, kNVTERowwiseData, &record, 144), "too many elements");
  EXPECT_THROWS(nvte_set_tensor_param(nullptr, kNVTEAmax, &record), "NULL");
  NVTETensor handle = target;
  EXPECT_THROWS(nvte_set_tensor_param(&handle, kNVTEAmax, nullptr), "NULL");
  EXPECT_THROWS(nvte_get_tensor_param(handle, kNVTENVFP4E4M3Max), "_v2");
  EXPECT_THROWS(nvte_tensor_size(target, 1), "\"dim\"", "(0)", "got 1");
  EXPECT_THROWS(nvte_make_shape(nullptr, 16), "15", "16");
  uint8_t small;
  EXPECT_THROWS(nvte_get_tensor_param_v2(target, kNVTENVFP4E4M3Max, &small, 1, nullptr), "needs 4 bytes, got 1");
}

TEST(views_name_what_is_wrong) {
  check::Unset unset;
  EXPECT_THROWS(view(unset, "x"), "\"x\"", "no data");
  check::Array integers({2, 2}, kNVTEInt32), matrix({2, 3, 4}, kNVTEFloat32);
  EXPECT_THROWS(view(integers, "x"), "\"x\"", "Float32, Float16, BFloat16", "got Int32");
  EXPECT_THROWS(view(matrix, "ids", {kNVTEInt32}), "\"ids\"", "Int32", "got Float32");
  const View flat = view(matrix, "x");
  EXPECT(flat.rows == 6 && flat.columns == 4);
  EXPECT_THROWS(expect_shape(flat, "x", {6, 4}), "\"x\"", "(6, 4)", "(2, 3, 4)");
  EXPECT_THROWS(expect_matrix(flat, "x", 6, 5), "6 x 5", "6 x 4");
  EXPECT_THROWS(expect_count(flat, "x", 25), "25", "24");
  EXPECT_THROWS(expect_dtype(flat, "x", kNVTEBFloat16), "BFloat16", "Float32");
  check::Array other({24}, kNVTEFloat32);
  EXPECT_THROWS(expect_same_shape(view(other, "y"), "y", flat, "x"), "\"y\"", "\"x\"", "(24)", "(2, 3, 4)");
  check::Array empty({0, 8}, kNVTEBFloat16);
  EXPECT(view(empty, "x").count() == 0);
}

TEST(zeroing) {
  check::Array array({3, 3}, kNVTEFloat16);
  float amax = 3;
  const check::Known known_amax(amax);
  array.fill(2).record(kNVTEAmax, &amax, kNVTEFloat32, {1});
  nvte_zero_tensor(array, nullptr);
  EXPECT_CLOSE(array.values(), std::vector<double>(9, 0), 0, 0);
  EXPECT_EQUAL(amax, 0.0f);
  nvte_zero_tensor(nullptr, nullptr);
  nvte_zero_tensor(check::Unset(), nullptr);
  uint8_t bytes[4] = {};
  const check::Known known_bytes(bytes);
  nvte_memset(bytes, 0x1ff, 3, nullptr);
  EXPECT(bytes[0] == 0xff && bytes[2] == 0xff && bytes[3] == 0);
  nvte_memset(nullptr, 0, 0, nullptr);
  EXPECT_THROWS(nvte_memset(nullptr, 0, 1, nullptr), "\"ptr\"", "NULL");
  const uint8_t source[3] = {7, 8, 9};
  nvte_copy_host_to_device_via_kernel(source, bytes, 2, nullptr);
  EXPECT(bytes[0] == 7 && bytes[1] == 8 && bytes[2] == 0xff);
  nvte_copy_host_to_device_via_kernel(nullptr, nullptr, 0, nullptr);
  EXPECT_THROWS(nvte_copy_host_to_device_via_kernel(source, nullptr, 1, nullptr), "\"device_ptr\"", "NULL");
}

TEST(quantization_config) {
  NVTEQuantizationConfig config = nvte_create_quantization_config();
  const uint8_t yes = 9;
  const float epsilon = 0.25f;
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigForcePow2Scales, &yes, 1);
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, 4);
  uint8_t flag = 0;
  float value = 0;
  size_t written = 0;
  nvte_get_quantization_config_attribute(config, kNVTEQuantizationConfigForcePow2Scales, &flag, 1, nullptr);
  nvte_get_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &value, 4, &written);
  EXPECT(flag == 1 && value == 0.25f && written == 4);
  nvte_get_quantization_config_attribute(nullptr, kNVTEQuantizationConfigNoopTensor, nullptr, 0, &written);
  EXPECT_EQUAL(written, size_t{8});
  EXPECT_THROWS(nvte_set_quantization_config_attribute(config, static_cast<NVTEQuantizationConfigAttribute>(11), &yes, 1),
                "NVTEQuantizationConfigAttribute", "11");
  EXPECT_THROWS(nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &yes, 1), "needs 4");
  EXPECT_THROWS(nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigNVFP44Over6Mode, &yes, 1), "9");
  EXPECT_THROWS(nvte_set_quantization_config_attribute(nullptr, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, 4), "NULL");
  nvte_destroy_quantization_config(config);
  EXPECT_THROWS(nvte_destroy_quantization_config(config), "Invalid NVTEQuantizationConfig", "destroyed already");
  nvte_destroy_quantization_config(nullptr);
}

TEST(matmul_config) {
  NVTEMatmulConfig config = nvte_create_matmul_config();
  const size_t sizes[] = {8, 8, 1, 1, 8, 1, 4};
  for (int attribute = 0; attribute < 7; ++attribute) {
    uint64_t value = 1, read = 0;
    size_t written = 0;
    nvte_set_matmul_config_attribute(config, static_cast<NVTEMatmulConfigAttribute>(attribute), &value, 8);
    nvte_get_matmul_config_attribute(config, static_cast<NVTEMatmulConfigAttribute>(attribute), &read, 8, &written);
    EXPECT_EQUAL(read, uint64_t{1});
    EXPECT_EQUAL(written, sizes[attribute]);
  }
  uint64_t value = 0;
  EXPECT_THROWS(nvte_get_matmul_config_attribute(config, kNVTEMatmulConfigSMCount, &value, 8, nullptr), "size_written");
  nvte_destroy_matmul_config(config);
  EXPECT_THROWS(nvte_destroy_matmul_config(config), "Invalid NVTEMatmulConfig");
}
