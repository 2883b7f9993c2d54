package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Casts between floating-point numbers and FP8 with scales.
 *
 * <p>With {@link dev.chagres.Scaling#TENSOR} quantizing reads the scale of its output and writes {@code q = round(x scale)},
 * limited to the largest number of the type (NaN stays NaN, an infinity becomes that number), {@code scaleInverse = 1 / scale}
 * and, where the output has one, {@code amax = max(amax, max |x|)}. With block scaling it computes each scale from the amax of the block,
 * as {@link QuantizationConfig} says. It writes whichever of rowwise and columnwise data the output has; with {@code TENSOR} the output
 * must have rowwise data.
 *
 * <p>Inputs are FLOAT32, FLOAT16 or BFLOAT16 matrices; products with scales are FP32. Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code cast.h}; Micikevicius et al., FP8 formats for deep learning (2022).
 */
public final class Cast {
    private Cast() {}

    /**
     * Enqueues quantizing with {@link QuantizationConfig#standard}, {@code nvte_quantize_v2}.
     *
     * @param input [M, K]
     * @param output [M, K]
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or what is written shares memory
     */
    public static void quantize(Tensor input, QuantizedTensor output, Stream stream) {
        quantize(input, output, QuantizationConfig.standard(), stream);
    }

    /**
     * Enqueues quantizing, {@code nvte_quantize_v2}.
     *
     * @param input [M, K]
     * @param output [M, K]
     * @param config how block scales are computed, and whether to quantize at all
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or what is written shares memory
     */
    public static void quantize(Tensor input, QuantizedTensor output, QuantizationConfig config, Stream stream) {
        checkInput(input, output, stream);
        MemorySegment attributes = QuantizationCalls.of(stream).config(config, stream);
        QuantizedChecks.apart("output", output, "noop", config.noop());
        if (input.count() != 0) {
            Status.te(
                    TransformerEngine.te_quantize_v2(input.handle(), output.handle(), attributes, stream.handle()),
                    "te_quantize_v2");
        }
    }

    /**
     * Enqueues {@code x = q scaleInverse} from the rowwise data, {@code nvte_dequantize}.
     *
     * @param input [M, K], scaled by {@link dev.chagres.Scaling#TENSOR}: TE has no kernel for blocks
     * @param output [M, K], FLOAT32, FLOAT16 or BFLOAT16
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or output shares memory with input
     */
    public static void dequantize(QuantizedTensor input, Tensor output, Stream stream) {
        QuantizedChecks.on(stream, "input", input);
        QuantizedChecks.requireTensorScaling("input", input, "TE has no kernel that dequantizes blocks");
        QuantizedChecks.requireRowwise("input", input, "that is what is dequantized");
        Checks.matrix(stream, "output", output);
        if (output.size(0) != input.rows() || output.size(1) != input.columns()) {
            throw new IllegalArgumentException(
                    "output: expected [" + input.rows() + ", " + input.columns() + "], got " + Checks.describe(output));
        }
        Checks.writable("output", output);
        QuantizedChecks.apart("output", output, "input", input);
        if (output.count() != 0) {
            Status.te(
                    TransformerEngine.te_dequantize(input.handle(), output.handle(), stream.handle()), "te_dequantize");
        }
    }

    /**
     * Enqueues quantizing to rowwise and columnwise data, and {@code dbias[k] = sum over m of input[m, k]}, {@code nvte_quantize_dbias}.
     *
     * @param input gradient of a sum with a bias, [M, K], M a multiple of 8, K of 4 (FLOAT32: of 2)
     * @param output [M, K], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise and columnwise data
     * @param dbias [K], in the type of input
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or what is written shares memory
     */
    public static void quantizeDbias(Tensor input, QuantizedTensor output, Tensor dbias, Stream stream) {
        checkInput(input, output, stream);
        quantizeDbias(null, input, input, output, dbias, 8, stream);
    }

    /**
     * Enqueues {@code dx = input f'(actInput)}, quantized to rowwise and columnwise data, and {@code dbias[k] = sum over m of dx[m, k]},
     * {@code nvte_quantize_dbias_d*}: the backward of an activation, fused with what the backward of the linear layer before it needs.
     *
     * @param activation GELU, SILU, RELU, QGELU or SRELU
     * @param input gradient of the activation's output, [M, K], M a multiple of 4, K of 4 (FLOAT32: of 2)
     * @param actInput the activation's input, like {@code input}
     * @param output dx, [M, K], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise and columnwise data
     * @param dbias [K], in the type of input
     * @throws IllegalArgumentException when the activation has no such kernel, shapes, types, parts or devices do not fit, or
     *     what is written shares memory
     */
    public static void quantizeDbiasDact(
            Activation activation, Tensor input, Tensor actInput, QuantizedTensor output, Tensor dbias, Stream stream) {
        DbiasDact.require(Checks.given("activation", activation));
        checkInput(input, output, stream);
        Checks.like(stream, "actInput", actInput, input);
        Checks.aligned("actInput", actInput);
        QuantizedChecks.apart("output", output, "actInput", actInput);
        quantizeDbias(activation, input, actInput, output, dbias, 4, stream);
    }

    /** Returns whether {@link #quantizeDbiasDact} takes {@code activation}. */
    public static boolean fusesGradientOf(Activation activation) {
        return switch (Checks.given("activation", activation)) {
            case GELU, SILU, RELU, QGELU, SRELU -> true;
            default -> false;
        };
    }

    private static void quantizeDbias(
            @Nullable Activation activation,
            Tensor input,
            Tensor actInput,
            QuantizedTensor output,
            Tensor dbias,
            int rowsAtOnce,
            Stream stream) {
        QuantizedChecks.requireTensorScaling(
                "output", output, "TE has no kernel that sums a bias gradient beside blocks");
        QuantizedChecks.requireBoth("output", output, "the kernel that sums a bias gradient makes both copies");
        QuantizedChecks.divisible("input", input, rowsAtOnce);
        Checks.vector(stream, "dbias", dbias, input.dtype(), input.size(1));
        Checks.written("dbias", dbias, "input", input, "actInput", actInput);
        QuantizedChecks.apart("dbias", dbias, "output", output);
        if (input.count() == 0) {
            dbias.zero(stream);
            return;
        }
        AskedWorkspace space = AskedWorkspace.of(AskedWorkspace.Function.QUANTIZE_DBIAS, activation, stream)
                .withMatrix(input);
        do {
            DbiasDact.call(activation, input, actInput, output, dbias, space.memory(), stream);
        } while (space.wasAsked());
    }

    private static void checkInput(Tensor input, QuantizedTensor output, Stream stream) {
        Checks.matrix(stream, "input", input);
        QuantizedChecks.output(stream, "output", output, input.size(0), input.size(1));
        QuantizedChecks.apart("output", output, "input", input);
        QuantizedChecks.aligned("input", input, "output", output);
    }

    /**
     * Calls the functions of cast.h that sum a bias gradient, with or without an activation's gradient, over checked tensors. With an unset
     * workspace each reports the size it needs; with memory it runs.
     */
    private static final class DbiasDact {
        private DbiasDact() {}

        /** Checks that TE has a function for the gradient of {@code activation}. */
        static void require(Activation activation) {
            if (!Cast.fusesGradientOf(activation)) {
                throw new IllegalArgumentException(
                        "activation: expected GELU, SILU, RELU, QGELU or SRELU, whose gradients"
                                + " TE quantizes in one kernel, got " + activation
                                + "; call its backward and then quantizeDbias");
            }
        }

        /** Calls the function of {@code activation}; null: the one without activation. */
        static void call(
                @Nullable Activation activation,
                Tensor input,
                Tensor actInput,
                QuantizedTensor output,
                Tensor dbias,
                MemorySegment workspace,
                Stream stream) {
            MemorySegment dy = input.handle();
            MemorySegment x = actInput.handle();
            MemorySegment q = output.handle();
            MemorySegment db = dbias.handle();
            MemorySegment queue = stream.handle();
            if (activation == null) {
                Status.te(TransformerEngine.te_quantize_dbias(dy, q, db, workspace, queue), "te_quantize_dbias");
                return;
            }
            switch (activation) {
                case GELU ->
                    Status.te(
                            TransformerEngine.te_quantize_dbias_dgelu(dy, x, q, db, workspace, queue),
                            "te_quantize_dbias_dgelu");
                case SILU ->
                    Status.te(
                            TransformerEngine.te_quantize_dbias_dsilu(dy, x, q, db, workspace, queue),
                            "te_quantize_dbias_dsilu");
                case RELU ->
                    Status.te(
                            TransformerEngine.te_quantize_dbias_drelu(dy, x, q, db, workspace, queue),
                            "te_quantize_dbias_drelu");
                case QGELU ->
                    Status.te(
                            TransformerEngine.te_quantize_dbias_dqgelu(dy, x, q, db, workspace, queue),
                            "te_quantize_dbias_dqgelu");
                case SRELU ->
                    Status.te(
                            TransformerEngine.te_quantize_dbias_dsrelu(dy, x, q, db, workspace, queue),
                            "te_quantize_dbias_dsrelu");
                default -> throw new IllegalStateException("activation " + activation + " was not checked");
            }
        }
    }

    /**
     * TE's configuration object of quantizing, kept per device, of which each call sets the attributes that changed.
     */
    static final class QuantizationCalls implements AutoCloseable {
        static final DeviceState.Attachment<QuantizationCalls> ATTACHMENT =
                new DeviceState.Attachment<>(QuantizationCalls::new);

        private static final int POWER_OF_2 = TransformerEngine.kNVTEQuantizationConfigForcePow2Scales();
        private static final int AMAX_EPSILON = TransformerEngine.kNVTEQuantizationConfigAmaxEpsilon();
        private static final int NOOP = TransformerEngine.kNVTEQuantizationConfigNoopTensor();

        private final MemorySegment value;
        private final MemorySegment config;
        private QuantizationConfig.Scales scales = QuantizationConfig.Scales.FLOAT32;
        private float amaxEpsilon;
        private long noop;

        private QuantizationCalls(DeviceState device) {
            value = device.arena().allocate(8, 8);
            Status.te(TransformerEngine.te_create_quantization_config(device.out()), "te_create_quantization_config");
            config = device.out().get(ValueLayout.ADDRESS, 0);
        }

        static QuantizationCalls of(Stream stream) {
            return Inside.state(stream).get(ATTACHMENT);
        }

        /** Checks the tensor of {@code wanted}, and returns TE's object with its attributes. */
        MemorySegment config(QuantizationConfig wanted, Stream stream) {
            Checks.given("config", wanted);
            Tensor flag = wanted.noop();
            long handle = 0;
            if (flag != null) {
                handle = Checks.vector(stream, "noop", flag, DType.FLOAT32, 1)
                        .handle()
                        .address();
            }
            if (wanted.scales() != scales) {
                value.set(ValueLayout.JAVA_BYTE, 0, (byte) wanted.scales().ordinal());
                set(POWER_OF_2, 1);
                scales = wanted.scales();
            }
            if (wanted.amaxEpsilon() != amaxEpsilon) {
                value.set(ValueLayout.JAVA_FLOAT, 0, wanted.amaxEpsilon());
                set(AMAX_EPSILON, 4);
                amaxEpsilon = wanted.amaxEpsilon();
            }
            if (handle != noop) {
                value.set(ValueLayout.JAVA_LONG, 0, handle);
                set(NOOP, 8);
                noop = handle;
            }
            return config;
        }

        private void set(int attribute, long size) {
            Status.te(
                    TransformerEngine.te_set_quantization_config_attribute(config, attribute, value, size),
                    "te_set_quantization_config_attribute");
        }

        @Override
        public void close() {
            TransformerEngine.te_destroy_quantization_config(config);
        }
    }
}
