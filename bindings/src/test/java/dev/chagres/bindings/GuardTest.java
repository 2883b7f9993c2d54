package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;

/** No argument that makes no sense ends the process: each guarded function of NVIDIA's library answers, with its text. */
@VendorTest
class GuardTest {

    /** Functions that zeros and nulls ask for nothing: no handle to destroy, a list of no tensors, a switch set to off. */
    private static final Set<String> NOTHING_TO_DO = Set.of(
            "te_copy_host_to_device_via_kernel",
            "te_create_tensors",
            "te_destroy_grouped_matmul_config",
            "te_destroy_grouped_tensor",
            "te_destroy_matmul_config",
            "te_destroy_quantization_config",
            "te_destroy_tensor",
            "te_destroy_tensors",
            "te_enable_cudnn_norm_bwd",
            "te_enable_cudnn_norm_fwd",
            "te_enable_zero_centered_gamma_in_weight_dtype",
            "te_ep_shutdown",
            "te_get_grouped_tensor_param",
            "te_get_quantization_config_attribute",
            "te_get_tensor_param_v2",
            "te_multi_cast_transpose",
            "te_multi_padding",
            "te_multi_tensor_gemm",
            "te_multi_tensor_pad_last_dim",
            "te_multi_tensor_transpose_to_bhsd",
            "te_multi_unpadding",
            "te_zero_tensor");

    @Test
    void everyFunctionAnswersWhateverItIsGiven() {
        List<GuardAnswers> all = GuardAnswers.of(
                VendorFolder.options(),
                List.of(
                        "null,0",
                        "null,-1",
                        "0x1,0",
                        "0xffff,1",
                        "memory,-1",
                        "memory,1000000000",
                        "memory,0",
                        "memory,1"));
        for (GuardAnswers answers : all) {
            answers.assertWhole();
            assertEquals(Set.of(), answers.functionsWith(GuardAnswers.MISSING));
        }
        assertEquals(new TreeSet<>(NOTHING_TO_DO), all.getFirst().functionsWith(GuardAnswers.SUCCESS));
    }
}
