/* The attributes of each descriptor: their types, counts, and which tensors an operation reads and writes. */
#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

/* cudnnBackendDescriptorType_t, by number. */
constexpr const char *kDescriptorNames[] = {
    "CUDNN_BACKEND_POINTWISE_DESCRIPTOR",
    "CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR",
    "CUDNN_BACKEND_ENGINE_DESCRIPTOR",
    "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR",
    "CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR",
    "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR",
    "CUDNN_BACKEND_INTERMEDIATE_INFO_DESCRIPTOR",
    "CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR",
    "CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR",
    "CUDNN_BACKEND_LAYOUT_INFO_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR",
    "CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR",
    "CUDNN_BACKEND_TENSOR_DESCRIPTOR",
    "CUDNN_BACKEND_MATMUL_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR",
    "CUDNN_BACKEND_REDUCTION_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR",
    "CUDNN_BACKEND_RESAMPLE_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_SIGNAL_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR",
    "CUDNN_BACKEND_RNG_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR",
    "CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR",
    "CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR",
    "CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR",
};

constexpr const char *kAttributeTypeNames[] = {"HANDLE", "DATA_TYPE", "BOOLEAN", "INT64", "FLOAT", "DOUBLE", "VOID_PTR",
    "CONVOLUTION_MODE", "HEUR_MODE", "KNOB_TYPE", "NAN_PROPOGATION", "NUMERICAL_NOTE", "LAYOUT_TYPE", "ATTRIB_NAME",
    "POINTWISE_MODE", "BACKEND_DESCRIPTOR", "GENSTATS_MODE", "BN_FINALIZE_STATS_MODE", "REDUCTION_OPERATOR_TYPE",
    "BEHAVIOR_NOTE", "TENSOR_REORDERING_MODE", "RESAMPLE_MODE", "PADDING_MODE", "INT32", "CHAR", "SIGNAL_MODE", "FRACTION",
    "NORM_MODE", "NORM_FWD_PHASE", "RNG_DISTRIBUTION", "MOE_GROUPED_MATMUL_MODE"};

}  // namespace

const char *descriptor_name(int type) {
  const int count = static_cast<int>(sizeof(kDescriptorNames) / sizeof(kDescriptorNames[0]));
  return type >= 0 && type < count ? kDescriptorNames[type] : "an unknown descriptor";
}

std::string attribute_type_name(int type) {
  const int count = static_cast<int>(sizeof(kAttributeTypeNames) / sizeof(kAttributeTypeNames[0]));
  return type >= 0 && type < count ? text("CUDNN_TYPE_", kAttributeTypeNames[type]) : text("type ", type);
}

size_t attribute_size(int type) {
  switch (type) {
    case kHandleType:
    case kInt64Type:
    case kDoubleType:
    case kPointerType:
    case kDescriptorType:
    case kFractionType:
      return 8;
    case kBooleanType:
    case kCharType:
      return 1;
    default:
      return 4;
  }
}

const std::vector<Attribute> &attributes() {
  static const std::vector<Attribute> all = {
      {kPointwise, 0, "CUDNN_ATTR_POINTWISE_MODE", {kPointwiseModeType}, 1, 1, true, Role::kNone},
      {kPointwise, 1, "CUDNN_ATTR_POINTWISE_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kPointwise, 2, "CUDNN_ATTR_POINTWISE_NAN_PROPAGATION", {kNanPropagationType}, 1, 1, false, Role::kNone},
      {kPointwise, 3, "CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP", {kDoubleType, kFloatType}, 1, 1, false, Role::kNone},
      {kPointwise, 4, "CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP", {kDoubleType, kFloatType}, 1, 1, false, Role::kNone},
      {kPointwise, 5, "CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE", {kDoubleType, kFloatType}, 1, 1, false, Role::kNone},
      {kPointwise, 6, "CUDNN_ATTR_POINTWISE_ELU_ALPHA", {kDoubleType, kFloatType}, 1, 1, false, Role::kNone},
      {kPointwise, 7, "CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA", {kDoubleType, kFloatType}, 1, 1, false, Role::kNone},
      {kPointwise, 8, "CUDNN_ATTR_POINTWISE_SWISH_BETA", {kDoubleType, kFloatType}, 1, 1, false, Role::kNone},
      {kPointwise, 9, "CUDNN_ATTR_POINTWISE_AXIS", {kInt64Type}, 1, 1, false, Role::kNone},
      {kConvolution, 100, "CUDNN_ATTR_CONVOLUTION_COMP_TYPE", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kConvolution, 101, "CUDNN_ATTR_CONVOLUTION_CONV_MODE", {kConvolutionModeType}, 1, 1, true, Role::kNone},
      {kConvolution, 102, "CUDNN_ATTR_CONVOLUTION_DILATIONS", {kInt64Type}, 1, 6, true, Role::kNone},
      {kConvolution, 103, "CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES", {kInt64Type}, 1, 6, true, Role::kNone},
      {kConvolution, 104, "CUDNN_ATTR_CONVOLUTION_POST_PADDINGS", {kInt64Type}, 1, 6, true, Role::kNone},
      {kConvolution, 105, "CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS", {kInt64Type}, 1, 6, true, Role::kNone},
      {kConvolution, 106, "CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS", {kInt64Type}, 1, 1, true, Role::kNone},
      {kEngineHeuristics, 200, "CUDNN_ATTR_ENGINEHEUR_MODE", {kHeuristicModeType}, 1, 1, true, Role::kNone},
      {kEngineHeuristics, 201, "CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kEngineHeuristics, 202, "CUDNN_ATTR_ENGINEHEUR_RESULTS", {kDescriptorType}, 0, 0, false, Role::kNone},
      {kEngineHeuristics, 203, "CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET", {kInt32Type}, 1, 1, false, Role::kNone},
      {kEngineConfig, 300, "CUDNN_ATTR_ENGINECFG_ENGINE", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kEngineConfig, 301, "CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO", {kDescriptorType}, 0, 0, false, Role::kNone},
      {kEngineConfig, 302, "CUDNN_ATTR_ENGINECFG_KNOB_CHOICES", {kDescriptorType}, 0, 0, false, Role::kNone},
      {kEngineConfig, 303, "CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE", {kInt64Type}, 1, 1, false, Role::kNone},
      {kEngineConfig, 304, "CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED", {kInt32Type}, 0, 0, false, Role::kNone},
      {kExecutionPlan, 400, "CUDNN_ATTR_EXECUTION_PLAN_HANDLE", {kHandleType}, 1, 1, false, Role::kNone},
      {kExecutionPlan, 401, "CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG", {kDescriptorType}, 1, 1, false, Role::kNone},
      {kExecutionPlan, 402, "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE", {kInt64Type}, 0, 0, false, Role::kNone},
      {kExecutionPlan, 403, "CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS", {kInt64Type}, 0, 0, false, Role::kNone},
      {kExecutionPlan, 405, "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION", {kCharType}, 1, int64_t(1) << 28, false, Role::kNone},
      {kConvolutionForward, 700, "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kConvolutionForward, 701, "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kConvolutionForward, 702, "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kConvolutionForward, 703, "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kConvolutionForward, 704, "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kConvolutionForward, 705, "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kConvolutionBackwardData, 706, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kConvolutionBackwardData, 707, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kConvolutionBackwardData, 708, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kConvolutionBackwardData, 709, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kConvolutionBackwardData, 710, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kConvolutionBackwardData, 711, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kConvolutionBackwardFilter, 712, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kConvolutionBackwardFilter, 713, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kConvolutionBackwardFilter, 714, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kConvolutionBackwardFilter, 715, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kConvolutionBackwardFilter, 716, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kConvolutionBackwardFilter, 717, "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kPointwiseOperation, 750, "CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kPointwiseOperation, 751, "CUDNN_ATTR_OPERATION_POINTWISE_XDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kPointwiseOperation, 752, "CUDNN_ATTR_OPERATION_POINTWISE_BDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kPointwiseOperation, 753, "CUDNN_ATTR_OPERATION_POINTWISE_YDESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kPointwiseOperation, 754, "CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kPointwiseOperation, 755, "CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kPointwiseOperation, 756, "CUDNN_ATTR_OPERATION_POINTWISE_DXDESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kPointwiseOperation, 757, "CUDNN_ATTR_OPERATION_POINTWISE_DYDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kPointwiseOperation, 758, "CUDNN_ATTR_OPERATION_POINTWISE_TDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kGenStats, 770, "CUDNN_ATTR_OPERATION_GENSTATS_MODE", {kGenStatsModeType}, 1, 1, true, Role::kNone},
      {kGenStats, 771, "CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kGenStats, 772, "CUDNN_ATTR_OPERATION_GENSTATS_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kGenStats, 773, "CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kGenStats, 774, "CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnFinalize, 780, "CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE", {kBnFinalizeModeType}, 1, 1, true, Role::kNone},
      {kBnFinalize, 781, "CUDNN_ATTR_OPERATION_BN_FINALIZE_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kBnFinalize, 782, "CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SUM_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnFinalize, 783, "CUDNN_ATTR_OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnFinalize, 784, "CUDNN_ATTR_OPERATION_BN_FINALIZE_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnFinalize, 785, "CUDNN_ATTR_OPERATION_BN_FINALIZE_BIAS_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnFinalize, 786, "CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kBnFinalize, 787, "CUDNN_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kBnFinalize, 788, "CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kBnFinalize, 789, "CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kBnFinalize, 790, "CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnFinalize, 791, "CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnFinalize, 792, "CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnFinalize, 793, "CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnFinalize, 794, "CUDNN_ATTR_OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnFinalize, 795, "CUDNN_ATTR_OPERATION_BN_FINALIZE_EPSILON_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnFinalize, 796, "CUDNN_ATTR_OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kOperationGraph, 800, "CUDNN_ATTR_OPERATIONGRAPH_HANDLE", {kHandleType}, 1, 1, true, Role::kNone},
      {kOperationGraph, 801, "CUDNN_ATTR_OPERATIONGRAPH_OPS", {kDescriptorType}, 1, kMany, true, Role::kNone},
      {kOperationGraph, 802, "CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", {kInt64Type}, 0, 0, false, Role::kNone},
      {kOperationGraph, 803, "CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED", {kBooleanType}, 1, 1, false, Role::kNone},
      {kTensor, 900, "CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT", {kInt64Type}, 1, 1, true, Role::kNone},
      {kTensor, 901, "CUDNN_ATTR_TENSOR_DATA_TYPE", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kTensor, 902, "CUDNN_ATTR_TENSOR_DIMENSIONS", {kInt64Type}, 1, 8, true, Role::kNone},
      {kTensor, 903, "CUDNN_ATTR_TENSOR_STRIDES", {kInt64Type}, 1, 8, true, Role::kNone},
      {kTensor, 904, "CUDNN_ATTR_TENSOR_VECTOR_COUNT", {kInt64Type}, 1, 1, false, Role::kNone},
      {kTensor, 905, "CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION", {kInt64Type}, 1, 1, false, Role::kNone},
      {kTensor, 906, "CUDNN_ATTR_TENSOR_UNIQUE_ID", {kInt64Type}, 1, 1, true, Role::kNone},
      {kTensor, 907, "CUDNN_ATTR_TENSOR_IS_VIRTUAL", {kBooleanType}, 1, 1, false, Role::kNone},
      {kTensor, 908, "CUDNN_ATTR_TENSOR_IS_BY_VALUE", {kBooleanType}, 1, 1, false, Role::kNone},
      {kTensor, 909, "CUDNN_ATTR_TENSOR_REORDERING_MODE", {kReorderingModeType}, 1, 1, false, Role::kNone},
      {kTensor, 913, "CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC", {kDescriptorType}, 1, 1, false, Role::kNone},
      {kVariantPack, 1000, "CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS", {kInt64Type}, 1, kMany, true, Role::kNone},
      {kVariantPack, 1001, "CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS", {kPointerType}, 1, kMany, true, Role::kNone},
      {kVariantPack, 1003, "CUDNN_ATTR_VARIANT_PACK_WORKSPACE", {kPointerType}, 1, 1, false, Role::kNone},
      {kEngine, 1300, "CUDNN_ATTR_ENGINE_OPERATION_GRAPH", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kEngine, 1301, "CUDNN_ATTR_ENGINE_GLOBAL_INDEX", {kInt64Type}, 1, 1, true, Role::kNone},
      {kEngine, 1302, "CUDNN_ATTR_ENGINE_KNOB_INFO", {kDescriptorType}, 0, 0, false, Role::kNone},
      {kEngine, 1303, "CUDNN_ATTR_ENGINE_NUMERICAL_NOTE", {kNumericalNoteType}, 0, 0, false, Role::kNone},
      {kEngine, 1304, "CUDNN_ATTR_ENGINE_LAYOUT_INFO", {kDescriptorType}, 0, 0, false, Role::kNone},
      {kEngine, 1305, "CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE", {kBehaviorNoteType}, 0, 0, false, Role::kNone},
      {kEngine, 1306, "CUDNN_ATTR_ENGINE_SM_COUNT_TARGET", {kInt32Type}, 1, 1, false, Role::kNone},
      {kMatmul, 1500, "CUDNN_ATTR_MATMUL_COMP_TYPE", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kMatmul, 1503, "CUDNN_ATTR_MATMUL_PADDING_VALUE", {kDoubleType}, 1, 1, false, Role::kNone},
      {kMatmulOperation, 1520, "CUDNN_ATTR_OPERATION_MATMUL_ADESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kMatmulOperation, 1521, "CUDNN_ATTR_OPERATION_MATMUL_BDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kMatmulOperation, 1522, "CUDNN_ATTR_OPERATION_MATMUL_CDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kMatmulOperation, 1523, "CUDNN_ATTR_OPERATION_MATMUL_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kMatmulOperation, 1524, "CUDNN_ATTR_OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT", {kInt64Type}, 1, 1, false, Role::kNone},
      {kMatmulOperation, 1525, "CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kMatmulOperation, 1526, "CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kMatmulOperation, 1527, "CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kReduction, 1600, "CUDNN_ATTR_REDUCTION_OPERATOR", {kReductionOperatorType}, 1, 1, true, Role::kNone},
      {kReduction, 1601, "CUDNN_ATTR_REDUCTION_COMP_TYPE", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kReduction, 1602, "CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC", {kBooleanType}, 1, 1, false, Role::kNone},
      {kReductionOperation, 1610, "CUDNN_ATTR_OPERATION_REDUCTION_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kReductionOperation, 1611, "CUDNN_ATTR_OPERATION_REDUCTION_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kReductionOperation, 1612, "CUDNN_ATTR_OPERATION_REDUCTION_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kBnBackwardWeights, 1620, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kBnBackwardWeights, 1621, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnBackwardWeights, 1622, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnBackwardWeights, 1623, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnBackwardWeights, 1624, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnBackwardWeights, 1625, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBnBackwardWeights, 1626, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnBackwardWeights, 1627, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnBackwardWeights, 1628, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnBackwardWeights, 1629, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBnBackwardWeights, 1630, "CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kResample, 1700, "CUDNN_ATTR_RESAMPLE_MODE", {kResampleModeType}, 1, 1, true, Role::kNone},
      {kResample, 1701, "CUDNN_ATTR_RESAMPLE_COMP_TYPE", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kResample, 1702, "CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS", {kInt64Type}, 1, 1, true, Role::kNone},
      {kResample, 1703, "CUDNN_ATTR_RESAMPLE_POST_PADDINGS", {kInt64Type, kFractionType}, 1, 6, true, Role::kNone},
      {kResample, 1704, "CUDNN_ATTR_RESAMPLE_PRE_PADDINGS", {kInt64Type, kFractionType}, 1, 6, true, Role::kNone},
      {kResample, 1705, "CUDNN_ATTR_RESAMPLE_STRIDES", {kInt64Type, kFractionType}, 1, 6, true, Role::kNone},
      {kResample, 1706, "CUDNN_ATTR_RESAMPLE_WINDOW_DIMS", {kInt64Type, kFractionType}, 1, 6, true, Role::kNone},
      {kResample, 1707, "CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION", {kNanPropagationType}, 1, 1, false, Role::kNone},
      {kResample, 1708, "CUDNN_ATTR_RESAMPLE_PADDING_MODE", {kPaddingModeType}, 1, 1, true, Role::kNone},
      {kResampleForward, 1710, "CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kResampleForward, 1711, "CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kResampleForward, 1712, "CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kResampleForward, 1713, "CUDNN_ATTR_OPERATION_RESAMPLE_FWD_ALPHA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kResampleForward, 1714, "CUDNN_ATTR_OPERATION_RESAMPLE_FWD_BETA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kResampleForward, 1716, "CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kResampleBackward, 1720, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kResampleBackward, 1721, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kResampleBackward, 1722, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kResampleBackward, 1723, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_ALPHA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kResampleBackward, 1724, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_BETA", {kFloatType, kDoubleType}, 1, 1, false, Role::kNone},
      {kResampleBackward, 1725, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kResampleBackward, 1726, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kResampleBackward, 1727, "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kConcatenate, 1800, "CUDNN_ATTR_OPERATION_CONCAT_AXIS", {kInt64Type}, 1, 1, true, Role::kNone},
      {kConcatenate, 1801, "CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS", {kDescriptorType}, 1, kMany, true, Role::kRead},
      {kConcatenate, 1802, "CUDNN_ATTR_OPERATION_CONCAT_INPLACE_INDEX", {kInt64Type}, 1, 1, false, Role::kNone},
      {kConcatenate, 1803, "CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kPagedCacheLoad, 1950, "CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kPagedCacheLoad, 1951, "CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kPagedCacheLoad, 1952, "CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kPagedCacheLoad, 1953, "CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kNormForward, 2000, "CUDNN_ATTR_OPERATION_NORM_FWD_MODE", {kNormModeType}, 1, 1, true, Role::kNone},
      {kNormForward, 2001, "CUDNN_ATTR_OPERATION_NORM_FWD_PHASE", {kNormPhaseType}, 1, 1, true, Role::kNone},
      {kNormForward, 2002, "CUDNN_ATTR_OPERATION_NORM_FWD_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kNormForward, 2003, "CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kNormForward, 2004, "CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kNormForward, 2005, "CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormForward, 2006, "CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormForward, 2007, "CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormForward, 2008, "CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormForward, 2009, "CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormForward, 2010, "CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormForward, 2011, "CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kNormForward, 2012, "CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kNormForward, 2013, "CUDNN_ATTR_OPERATION_NORM_FWD_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kNormForward, 2014, "CUDNN_ATTR_OPERATION_NORM_FWD_PEER_STAT_DESCS", {kDescriptorType}, 1, kMany, false, Role::kRead},
      {kNormBackward, 2100, "CUDNN_ATTR_OPERATION_NORM_BWD_MODE", {kNormModeType}, 1, 1, true, Role::kNone},
      {kNormBackward, 2101, "CUDNN_ATTR_OPERATION_NORM_BWD_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kNormBackward, 2102, "CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormBackward, 2103, "CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormBackward, 2104, "CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kNormBackward, 2105, "CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormBackward, 2106, "CUDNN_ATTR_OPERATION_NORM_BWD_EPSILON_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kNormBackward, 2107, "CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kNormBackward, 2108, "CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kNormBackward, 2109, "CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kNormBackward, 2110, "CUDNN_ATTR_OPERATION_NORM_BWD_PEER_STAT_DESCS", {kDescriptorType}, 1, kMany, false, Role::kRead},
      {kReshape, 2200, "CUDNN_ATTR_OPERATION_RESHAPE_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kReshape, 2201, "CUDNN_ATTR_OPERATION_RESHAPE_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kRng, 2300, "CUDNN_ATTR_RNG_DISTRIBUTION", {kRngDistributionType}, 1, 1, true, Role::kNone},
      {kRng, 2301, "CUDNN_ATTR_RNG_NORMAL_DIST_MEAN", {kDoubleType}, 1, 1, false, Role::kNone},
      {kRng, 2302, "CUDNN_ATTR_RNG_NORMAL_DIST_STANDARD_DEVIATION", {kDoubleType}, 1, 1, false, Role::kNone},
      {kRng, 2303, "CUDNN_ATTR_RNG_UNIFORM_DIST_MAXIMUM", {kDoubleType}, 1, 1, false, Role::kNone},
      {kRng, 2304, "CUDNN_ATTR_RNG_UNIFORM_DIST_MINIMUM", {kDoubleType}, 1, 1, false, Role::kNone},
      {kRng, 2305, "CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY", {kDoubleType}, 1, 1, false, Role::kNone},
      {kRngOperation, 2310, "CUDNN_ATTR_OPERATION_RNG_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kRngOperation, 2311, "CUDNN_ATTR_OPERATION_RNG_SEED", {kInt64Type, kDescriptorType}, 1, 1, true, Role::kRead},
      {kRngOperation, 2312, "CUDNN_ATTR_OPERATION_RNG_DESC", {kDescriptorType}, 1, 1, true, Role::kNone},
      {kRngOperation, 2313, "CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kBlockScaleQuantize, 2500, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBlockScaleQuantize, 2501, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBlockScaleQuantize, 2502, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBlockScaleQuantize, 2503, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kBlockScaleQuantize, 2504, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE", {kInt32Type}, 1, 1, true, Role::kNone},
      {kBlockScaleDequantize, 2600, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBlockScaleDequantize, 2601, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kBlockScaleDequantize, 2602, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kBlockScaleDequantize, 2603, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kBlockScaleDequantize, 2604, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE", {kInt32Type}, 1, 8, true, Role::kNone},
      {kBlockScaleDequantize, 2605, "CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE", {kBooleanType}, 1, 1, false, Role::kNone},
      {kSdpaForward, 2800, "CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaForward, 2801, "CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaForward, 2802, "CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaForward, 2803, "CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kSdpaForward, 2804, "CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC", {kDescriptorType}, 1, 1, false, Role::kWritten},
      {kSdpaForward, 2805, "CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaForward, 2806, "CUDNN_ATTR_OPERATION_SDPA_FWD_BLOCK_MASK_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaForward, 2807, "CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaForward, 2808, "CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_VDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaForward, 2809, "CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaForward, 2810, "CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaBackward, 2851, "CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaBackward, 2852, "CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaBackward, 2853, "CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaBackward, 2854, "CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaBackward, 2855, "CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kSdpaBackward, 2856, "CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaBackward, 2857, "CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaBackward, 2858, "CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kSdpaBackward, 2859, "CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kSdpaBackward, 2860, "CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kSdpaBackward, 2861, "CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kSdpaBackward, 2862, "CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kMoeGroupedMatmul, 2900, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE", {kMoeModeType}, 1, 1, true, Role::kNone},
      {kMoeGroupedMatmul, 2901, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC", {kDataTypeType}, 1, 1, true, Role::kNone},
      {kMoeGroupedMatmul, 2902, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kMoeGroupedMatmul, 2903, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kMoeGroupedMatmul, 2904, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC", {kDescriptorType}, 1, 1, true, Role::kRead},
      {kMoeGroupedMatmul, 2905, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC", {kDescriptorType}, 1, 1, true, Role::kWritten},
      {kMoeGroupedMatmul, 2906, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kMoeGroupedMatmul, 2907, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC", {kDescriptorType}, 1, 1, false, Role::kRead},
      {kMoeGroupedMatmul, 2908, "CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K", {kInt32Type}, 1, 1, false, Role::kNone},
  };
  return all;
}

const Attribute &attribute(int descriptor, int name) {
  static const std::map<int, const Attribute *> by_name = [] {
    std::map<int, const Attribute *> all;
    for (const Attribute &one : attributes()) all[one.name] = &one;
    return all;
  }();
  const auto found = by_name.find(name);
  CHAGRES_REQUIRE(found != by_name.end() && found->second->descriptor == descriptor, kBadParam, "attribute ", name,
                  ": expected one of ", descriptor_name(descriptor));
  return *found->second;
}

int64_t Descriptor::integer(int name) const {
  const Value &value = values.at(name);
  if (attribute_size(value.type) == 8) return bit_cast<int64_t>(*reinterpret_cast<const std::array<char, 8> *>(value.bytes.data()));
  if (value.type == kBooleanType) return value.bytes[0] != 0;
  return bit_cast<int32_t>(*reinterpret_cast<const std::array<char, 4> *>(value.bytes.data()));
}

double Descriptor::number(int name, double otherwise) const {
  const auto found = values.find(name);
  if (found == values.end()) return otherwise;
  double number = 0;
  float single = 0;
  if (found->second.type == kDoubleType) {
    std::memcpy(&number, found->second.bytes.data(), sizeof(number));
    return number;
  }
  std::memcpy(&single, found->second.bytes.data(), sizeof(single));
  return static_cast<double>(single);
}

Dims Descriptor::integers(int name) const {
  const Value &value = values.at(name);
  Dims all(static_cast<size_t>(value.count));
  for (size_t i = 0; i < all.size(); ++i) {
    if (value.type == kFractionType) {
      int32_t halves[2];
      std::memcpy(halves, value.bytes.data() + 8 * i, 8);
      const int64_t fraction[2] = {halves[0], halves[1]};
      CHAGRES_REQUIRE(fraction[1] != 0 && fraction[0] % fraction[1] == 0, kNotSupported, attribute(type, name).text,
              ": expected whole numbers, got ", fraction[0], "/", fraction[1]);
      all[i] = fraction[0] / fraction[1];
    } else {
      std::memcpy(&all[i], value.bytes.data() + 8 * i, 8);
    }
  }
  return all;
}

const Descriptor &Descriptor::descriptor(int name) const { return *values.at(name).descriptors.at(0); }

bool writes(const Descriptor &operation, const Attribute &attribute) {
  constexpr int kPhase = 2001, kMean = 2003, kInverseVariance = 2004, kTraining = 1;
  if (attribute.name == kMean || attribute.name == kInverseVariance) return operation.integer(kPhase) == kTraining;
  return attribute.role == Role::kWritten;
}

}  // namespace chagres::reference::cudnn
