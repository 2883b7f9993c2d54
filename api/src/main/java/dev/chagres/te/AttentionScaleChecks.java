package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.AttentionTensors.AttentionMemory;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the types of attention's tensors, and of their scales in eight bits.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionScaleChecks {
    /** The arguments' names, made beforehand so that calls make none. */
    private record Names(String scale, String scaleInverse, String amax) {
        static Names of(String tensor) {
            return new Names(
                    "scales." + tensor + ".scale", "scales." + tensor + ".scaleInverse", "scales." + tensor + ".amax");
        }
    }

    private static final Names SOFTMAX = Names.of("softmax");
    private static final Names OUTPUT = Names.of("output");
    private static final Names SCORE_GRADIENT = Names.of("scoreGradient");
    private static final Names QKV_GRADIENT = Names.of("qkvGradient");

    private AttentionScaleChecks() {}

    /** Checks the type of query, key or value: floating-point, or E4M3 where there are scales. */
    static void input(Stream stream, String argument, Tensor tensor, @Nullable AttentionScales scales) {
        if (scales != null) {
            Checks.typed(stream, argument, tensor, DType.FLOAT8_E4M3);
        } else if (Checks.on(stream, argument, tensor).dtype().isFloat8()) {
            throw new IllegalArgumentException(argument + ": expected scales for " + Checks.describe(tensor)
                    + ", got none; call scales(...) before");
        } else {
            Checks.floats(stream, argument, tensor);
        }
    }

    /** Returns the type that {@code tensor} must have: the query's, or, for a gradient in eight bits, its own. */
    static DType gradientType(String argument, Tensor tensor, AttentionTensors tensors) {
        if (tensors.scales() == null) {
            return tensors.query().dtype();
        }
        if (!tensor.dtype().isFloat8()) {
            throw new IllegalArgumentException(argument
                    + ": expected FLOAT8_E5M2 or FLOAT8_E4M3, for the query is in eight bits, got "
                    + Checks.describe(tensor));
        }
        return tensor.dtype();
    }

    /** Checks a gradient of query, key or value, of the shape of {@code model}. */
    static Tensor gradient(Stream stream, String argument, Tensor tensor, Tensor model, AttentionTensors tensors) {
        if (tensors.scales() == null) {
            return Checks.like(stream, argument, tensor, model);
        }
        Checks.shaped(stream, argument, tensor, model);
        gradientType(argument, tensor, tensors);
        return Checks.typed(stream, argument, tensor, tensors.queryGradient().dtype());
    }

    /** Checks the scales and amaxes of a forward call. */
    static void forward(AttentionTensors tensors, AttentionMemory memory, Stream stream) {
        AttentionScales scales = tensors.scales();
        if (scales != null) {
            read("scales.qkv.scaleInverse", scales.qkv().scaleInverse(), memory, stream);
            cells(SOFTMAX, scales.softmax(), memory, stream);
            cells(OUTPUT, scales.output(), memory, stream);
        }
    }

    /** Checks the scales and amaxes of a backward call. */
    static void backward(AttentionTensors tensors, AttentionMemory memory, Stream stream) {
        AttentionScales scales = tensors.scales();
        if (scales == null) {
            return;
        }
        read("scales.qkv.scaleInverse", scales.qkv().scaleInverse(), memory, stream);
        read("scales.softmax.scale", scales.softmax().scale(), memory, stream);
        read("scales.softmax.scaleInverse", scales.softmax().scaleInverse(), memory, stream);
        read("scales.output.scaleInverse", scales.output().scaleInverse(), memory, stream);
        TensorScale incoming = present("outputGradient", scales.outputGradient());
        read("scales.outputGradient.scaleInverse", incoming.scaleInverse(), memory, stream);
        cells(SCORE_GRADIENT, present("scoreGradient", scales.scoreGradient()), memory, stream);
        cells(QKV_GRADIENT, present("qkvGradient", scales.qkvGradient()), memory, stream);
    }

    private static TensorScale present(String name, @Nullable TensorScale scale) {
        if (scale == null) {
            throw new IllegalArgumentException("scales: expected a scale of the " + name
                    + ", which backward needs, got none; make new AttentionScales(...) with all six");
        }
        return scale;
    }

    private static void cells(Names names, TensorScale scale, AttentionMemory memory, Stream stream) {
        read(names.scale, scale.scale(), memory, stream);
        read(names.scaleInverse, scale.scaleInverse(), memory, stream);
        Tensor amax = scale.amax();
        Checks.vector(stream, names.amax, amax, DType.FLOAT32, 1);
        memory.written(names.amax, amax, amax.byteSize());
    }

    private static void read(String argument, Tensor cell, AttentionMemory memory, Stream stream) {
        Checks.vector(stream, argument, cell, DType.FLOAT32, 1);
        memory.readApart(argument, cell);
    }
}
