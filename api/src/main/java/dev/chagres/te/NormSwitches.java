package dev.chagres.te;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.OpenDevices;

/**
 * Selects the kernels that compute the norms of {@link Normalization}, and how they add 1 to gamma, for all threads and devices of the
 * process.
 *
 * <p>A switch can be set only while the process has no open device. So no norm is running, and neither workspaces nor graphs of the other
 * kernels exist: every norm of a device is computed as the switches were when it was opened.
 *
 * <p>Their initial values come from the environment variables {@code NVTE_NORM_FWD_USE_CUDNN}, {@code NVTE_NORM_BWD_USE_CUDNN} and {@code
 * NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE}, each 0 (the default) or 1.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code nvte_enable_cudnn_norm_fwd}, {@code nvte_enable_cudnn_norm_bwd} and {@code
 * nvte_enable_zero_centered_gamma_in_weight_dtype} in TE's {@code normalization.h}.
 */
public final class NormSwitches {
    /** What 1 + gamma is rounded to before a norm is multiplied by it. */
    public enum GammaPrecision {
        /** FP32. */
        FLOAT32,
        /** The type of gamma. TE's own kernels keep FP32. */
        GAMMA_TYPE
    }

    // Written only while no device is open; a thread that drives a device has seen it opened after the write.
    private static NormBackend forward = ofEnvironment("NVTE_NORM_FWD_USE_CUDNN") ? NormBackend.CUDNN : NormBackend.TE;
    private static NormBackend backward = ofEnvironment("NVTE_NORM_BWD_USE_CUDNN") ? NormBackend.CUDNN : NormBackend.TE;

    private static GammaPrecision zeroCenteredGamma =
            ofEnvironment("NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE") ? GammaPrecision.GAMMA_TYPE : GammaPrecision.FLOAT32;

    private NormSwitches() {}

    private static boolean ofEnvironment(String name) {
        return "1".equals(System.getenv(name));
    }

    /** Returns which kernels compute norms forward. */
    public static NormBackend forward() {
        return forward;
    }

    /** Returns which kernels compute gradients of norms. */
    public static NormBackend backward() {
        return backward;
    }

    /** Returns what {@code 1 + gamma} is rounded to. */
    public static GammaPrecision zeroCenteredGamma() {
        return zeroCenteredGamma;
    }

    /**
     * Chooses which kernels compute norms forward. With cuDNN's an FP8 result needs an amax, and tensors begin at multiples of 16 bytes.
     *
     * @throws IllegalStateException while a device is open
     */
    public static void forward(NormBackend backend) {
        Checks.given("backend", backend);
        NativeLibraries.ensureLoaded();
        OpenDevices.whileNone("forward", () -> {
            Status.te(
                    TransformerEngine.te_enable_cudnn_norm_fwd(backend == NormBackend.CUDNN),
                    "te_enable_cudnn_norm_fwd");
            forward = backend;
        });
    }

    /**
     * Chooses which kernels compute gradients of norms. With cuDNN's, gamma has the type of x, and tensors begin at multiples of 16 bytes.
     *
     * @throws IllegalStateException while a device is open
     */
    public static void backward(NormBackend backend) {
        Checks.given("backend", backend);
        NativeLibraries.ensureLoaded();
        OpenDevices.whileNone("backward", () -> {
            Status.te(
                    TransformerEngine.te_enable_cudnn_norm_bwd(backend == NormBackend.CUDNN),
                    "te_enable_cudnn_norm_bwd");
            backward = backend;
        });
    }

    /**
     * Chooses what cuDNN's kernels round {@code 1 + gamma} to, if gamma is centred on zero.
     *
     * @throws IllegalStateException while a device is open
     */
    public static void zeroCenteredGamma(GammaPrecision precision) {
        Checks.given("precision", precision);
        NativeLibraries.ensureLoaded();
        OpenDevices.whileNone("zeroCenteredGamma", () -> {
            Status.te(
                    TransformerEngine.te_enable_zero_centered_gamma_in_weight_dtype(
                            precision == GammaPrecision.GAMMA_TYPE),
                    "te_enable_zero_centered_gamma_in_weight_dtype");
            zeroCenteredGamma = precision;
        });
    }
}
