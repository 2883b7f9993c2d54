package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.AttentionWork;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.WorkListener;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;

/**
 * Attention by our own tiled kernels, {@code o = dropout(softmax(scale q k^T + mask)) v} for each head, and its gradients:
 * for cases that cuDNN does not take, such as FLOAT32, soft caps, masks by element, or bias and sinks of packed tokens ({@link
 * AttentionScores}).
 *
 * <p>FLOAT32, FLOAT16 and BFLOAT16. Tensor cores multiply FLOAT16 and BFLOAT16 if nothing is dropped, keys and values have the same number of
 * columns, at most 128, and all rows begin at multiples of 16 bytes. They take softmax weights and gradients of scores as the sum of two 16-bit
 * numbers; with at most 32 columns and unchanged scores as one, like cuDNN. All other arithmetic is FP32. {@link AttentionTensors} describes
 * the tensors; the size of a head is a multiple of 8, at most 256. Sums have a fixed order, so all gradients are deterministic.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_attention_forward}, {@code ops_attention_backward} in {@code ops.h}.
 */
public final class Attention {
    private static final int HEAD_STEP = 8;
    private static final int LARGEST_HEAD = 256;
    private static final AttentionScores PLAIN = new AttentionScores();
    private static final AttentionPlace WHOLE = new AttentionPlace();

    private Attention() {}

    /**
     * Enqueues attention: writes output and statistics. Rows of packed tensors behind the last sequence stay as they are.
     * Without queries nothing happens; a query that sees no key gets output 0 and statistics -infinity.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     */
    public static void forward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
        forward(problem, tensors, PLAIN, stream);
    }

    /**
     * Enqueues attention with modified scores: writes output and statistics, which include the extra term of the softmax. A query that sees
     * no key gets output 0, and as statistics the logarithm of that term.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     */
    public static void forward(
            AttentionProblem problem, AttentionTensors tensors, AttentionScores scores, Stream stream) {
        forward(problem, tensors, scores, WHOLE, stream);
    }

    /**
     * Enqueues {@link #forward(AttentionProblem, AttentionTensors, AttentionScores, Stream)} of a part of a larger attention: dropout draws
     * by the indices of the whole.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     */
    public static void forward(
            AttentionProblem problem,
            AttentionTensors tensors,
            AttentionScores scores,
            AttentionPlace place,
            Stream stream) {
        Checks.given("scores", scores, "place", place);
        Checks.given("tensors", tensors).checkForward(problem, stream);
        checkPlain(problem);
        checkHeads(tensors);
        scores.checkForward(tensors, stream);
        place.check(tensors, stream);
        if (tensors.output().count() == 0) {
            return;
        }
        tell(problem, tensors, WorkListener.Part.FORWARD, stream);
        AttentionStruct struct = Inside.state(stream).get(AttentionStruct.ATTACHMENT);
        struct.describe(problem, tensors, scores, place);
        Status.ops(Ops.ops_attention_forward(struct.segment, stream.handle()), "ops_attention_forward");
    }

    /**
     * Enqueues the gradients of {@link #forward}, which was called with this problem and these tensors. Rows of packed
     * gradients behind the last sequence stay as they are; a query that sees no key, and a key that no query sees, get 0.
     *
     * @param delta like the statistics, scratch
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     */
    public static void backward(AttentionProblem problem, AttentionTensors tensors, Tensor delta, Stream stream) {
        backward(problem, tensors, PLAIN, delta, stream);
    }

    /**
     * Enqueues the gradients of {@link #forward(AttentionProblem, AttentionTensors, AttentionScores, Stream)}, which was called
     * with this problem, these tensors and these scores; also those of bias and sinks if tensors for them were given. Every element of the
     * gradient of the bias is written: 0 where no query sees a key.
     *
     * @param delta like the statistics, scratch
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     */
    public static void backward(
            AttentionProblem problem, AttentionTensors tensors, AttentionScores scores, Tensor delta, Stream stream) {
        backward(problem, tensors, scores, WHOLE, delta, stream);
    }

    /**
     * Enqueues the gradients of {@link #forward(AttentionProblem, AttentionTensors, AttentionScores, AttentionPlace, Stream)}, which was
     * called with the same arguments, as {@link #backward(AttentionProblem, AttentionTensors, AttentionScores, Tensor, Stream)} does.
     *
     * @param delta like the statistics, scratch
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     */
    public static void backward(
            AttentionProblem problem,
            AttentionTensors tensors,
            AttentionScores scores,
            AttentionPlace place,
            Tensor delta,
            Stream stream) {
        Checks.given("scores", scores, "place", place);
        Checks.given("tensors", tensors).checkBackward(problem, stream);
        checkPlain(problem);
        checkHeads(tensors);
        Checks.like(stream, "delta", delta, tensors.statistics());
        tensors.checkApart("delta", delta);
        scores.checkBackward(tensors, stream);
        place.check(tensors, stream);
        tell(problem, tensors, WorkListener.Part.GRADIENT, stream);
        AttentionStruct struct = Inside.state(stream).get(AttentionStruct.ATTACHMENT);
        struct.describe(problem, tensors, scores, place);
        struct.describeGradients(problem, tensors, delta);
        Status.ops(Ops.ops_attention_backward(struct.segment, stream.handle()), "ops_attention_backward");
    }

    private static void tell(
            AttentionProblem problem, AttentionTensors tensors, WorkListener.Part part, Stream stream) {
        long right = problem.mask().isCausal() ? 0 : problem.windowRight();
        AttentionWork.tell(part, tensors.query(), tensors.output(), problem.windowLeft(), right, stream);
    }

    /** Returns whether heads of {@code dim} elements are taken: a multiple of 8 from 8 to 256. */
    public static boolean takes(long dim) {
        return dim >= HEAD_STEP && dim <= LARGEST_HEAD && dim % HEAD_STEP == 0;
    }

    private static void checkPlain(AttentionProblem problem) {
        if (!problem.isPlain()) {
            throw new IllegalArgumentException(
                    "problem: expected NO_BIAS and a softmax that is VANILLA, for these kernels"
                            + " change scores as AttentionScores say, got " + problem.biasType() + " and "
                            + problem.softmaxType());
        }
    }

    private static void checkHeads(AttentionTensors tensors) {
        if (tensors.scales() != null) {
            throw new IllegalArgumentException(
                    "scales: expected none, for these kernels compute in 16 and 32 bits, got "
                            + Checks.describe(tensors.query()) + " with scales; call FusedAttention, or scales(null)");
        }
        checkHead("query", tensors.query());
        checkHead("value", tensors.value());
    }

    private static void checkHead(String argument, Tensor tensor) {
        if (!takes(tensor.size(tensor.rank() - 1))) {
            throw new IllegalArgumentException(argument + ": expected heads of a multiple of " + HEAD_STEP
                    + " elements, at" + " most " + LARGEST_HEAD + ", got " + Checks.describe(tensor));
        }
    }
}
