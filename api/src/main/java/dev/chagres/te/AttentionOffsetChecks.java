package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the bias of fused attention and of the offset of its softmax, after those of the other tensors.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionOffsetChecks {
    private AttentionOffsetChecks() {}

    /** Checks what forward and backward read, and that it does not overlap what {@code memory} has recorded as written. */
    static void inputs(AttentionProblem problem, AttentionTensors tensors, AttentionMemory memory, Stream stream) {
        Tensor bias = wanted("bias", tensors.bias(), problem.biasType().isTensor(), problem);
        if (bias != null) {
            bias(bias, tensors, stream);
            memory.readApart("bias", bias);
        }
        Tensor offset = offset("softmaxOffset", tensors.softmaxOffset(), problem, tensors, stream);
        if (offset != null) {
            memory.readApart("softmaxOffset", offset);
        }
    }

    /** Checks what backward writes. */
    static void gradients(AttentionProblem problem, AttentionTensors tensors, AttentionMemory memory, Stream stream) {
        Tensor gradient = wanted(
                "biasGradient", tensors.biasGradient(), problem.biasType().isTensor(), problem);
        if (gradient != null) {
            Checks.like(stream, "biasGradient", gradient, Checks.given("bias", tensors.bias()));
            Checks.aligned("biasGradient", gradient);
            memory.written("biasGradient", gradient, gradient.byteSize());
        }
        Tensor offset = offset("softmaxOffsetGradient", tensors.softmaxOffsetGradient(), problem, tensors, stream);
        if (offset != null) {
            memory.written("softmaxOffsetGradient", offset, offset.byteSize());
        }
    }

    private static @Nullable Tensor offset(
            String argument,
            @Nullable Tensor tensor,
            AttentionProblem problem,
            AttentionTensors tensors,
            Stream stream) {
        Tensor offset = wanted(argument, tensor, problem.softmaxType() != SoftmaxType.VANILLA, problem);
        if (offset != null) {
            Checks.vector(stream, argument, offset, DType.FLOAT32, heads(tensors));
            Checks.aligned(argument, offset);
        }
        return offset;
    }

    /** Returns the tensor if the problem requires one, null if it requires none. */
    private static @Nullable Tensor wanted(
            String argument, @Nullable Tensor tensor, boolean wanted, AttentionProblem problem) {
        if (wanted == (tensor != null)) {
            return tensor;
        }
        String reason =
                ", for the problem has " + problem.biasType() + " and a softmax that is " + problem.softmaxType();
        if (tensor == null) {
            throw new IllegalStateException(
                    argument + ": expected a tensor" + reason + ", got none; call " + argument + "(...) before");
        }
        throw new IllegalArgumentException(argument + ": expected none" + reason + ", got " + Checks.describe(tensor));
    }

    private static void bias(Tensor bias, AttentionTensors tensors, Stream stream) {
        Checks.on(stream, "bias", bias);
        long sequences = tensors.sequences();
        long heads = heads(tensors);
        boolean fits = bias.dtype() == tensors.query().dtype()
                && bias.rank() == 4
                && (bias.size(0) == 1 || bias.size(0) == sequences)
                && (bias.size(1) == 1 || bias.size(1) == heads)
                && bias.size(2) == tensors.queryLength()
                && bias.size(3) == tensors.keyLength();
        if (!fits) {
            throw new IllegalArgumentException(
                    "bias: expected " + tensors.query().dtype() + "[1 or " + sequences
                            + ", 1 or " + heads + ", " + tensors.queryLength() + ", " + tensors.keyLength() + "], got "
                            + Checks.describe(bias));
        }
        Checks.aligned("bias", bias);
    }

    private static long heads(AttentionTensors tensors) {
        Tensor query = tensors.query();
        return query.size(query.rank() - 2);
    }
}
