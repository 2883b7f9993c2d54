package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Cross-entropy of logits whose classes are sharded among ranks: what {@link CrossEntropy} computes for all columns, in three steps. The
 * results of the first two are all-reduced before the next one: {@code maximum} with MAX, {@code sums} with SUM.
 *
 * <p>The logits of a rank are [T, columns]; its first {@code classes} columns are classes {@code first} to {@code first + classes - 1},
 * the others are padding. A rank may have no class, and no column. Arithmetic is FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_vocabulary_cross_entropy_maximum}, {@code ops_vocabulary_cross_entropy_sums}, {@code
 * ops_vocabulary_cross_entropy_loss}, {@code ops_cross_entropy_backward} in {@code ops.h}; Megatron-LM's {@code
 * _VocabParallelCrossEntropy}.
 */
public final class VocabularyCrossEntropy {
    /** As many as labels of INT32 can name. */
    private static final long MOST_CLASSES = 1L << 31;

    private VocabularyCrossEntropy() {}

    /**
     * Enqueues {@code maximum[t] = max of z[t, c] over the rank's classes c}, negative infinity if it has none. NaN is ignored.
     *
     * @param logits z, floating-point numbers [T, at least classes]
     * @param classes of this rank, at least 0
     * @param maximum FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types, classes or devices do not fit, or maximum shares memory with the logits
     */
    public static void maximum(Tensor logits, long classes, Tensor maximum, Stream stream) {
        checkLogits(logits, classes, stream);
        Checks.vector(stream, "maximum", maximum, DType.FLOAT32, logits.size(0));
        Checks.writable("maximum", maximum);
        Checks.apart("maximum", maximum, "logits", logits);
        Status.ops(
                Ops.ops_vocabulary_cross_entropy_maximum(
                        logits.address(),
                        maximum.address(),
                        logits.size(0),
                        classes,
                        logits.size(1),
                        logits.dtype().code(),
                        stream.handle()),
                "ops_vocabulary_cross_entropy_maximum");
    }

    /**
     * Returns how many rows {@link #sums} writes: 2, and with label smoothing 3.
     *
     * @param labelSmoothing e, 0 to 1
     * @throws IllegalArgumentException when it is another number
     */
    public static long sumRows(float labelSmoothing) {
        CrossEntropyChecks.labelSmoothing(labelSmoothing);
        return labelSmoothing == 0 ? 2 : 3;
    }

    /**
     * Enqueues {@code sums[0, t] = sum of exp(z[t, c] - maximum[t])} over the rank's classes c, where an infinite maximum counts as 0;
     * {@code sums[1, t] = z[t, label[t] - first]} where the label is a class of the rank, else 0; and with label smoothing {@code sums[2,
     * t] = 2^-32 sum of z[t, c]}, which overflows for no finite logits.
     *
     * @param logits z, floating-point numbers [T, at least classes]
     * @param labels INT32 [T]
     * @param first index of the rank's first class, at least 0
     * @param classes of this rank, at least 0
     * @param labelSmoothing e, 0 to 1
     * @param maximum FLOAT32 [T], that of all ranks
     * @param sums FLOAT32 [{@link #sumRows}, T]
     * @throws IllegalArgumentException when shapes, types, numbers or devices do not fit, or the sums share memory with another tensor
     */
    public static void sums(
            Tensor logits,
            Tensor labels,
            long first,
            long classes,
            float labelSmoothing,
            Tensor maximum,
            Tensor sums,
            Stream stream) {
        checkLogits(logits, classes, stream);
        checkFirst(first, classes);
        CrossEntropyChecks.labelSmoothing(labelSmoothing);
        Checks.vector(stream, "labels", labels, DType.INT32, logits.size(0));
        Checks.vector(stream, "maximum", maximum, DType.FLOAT32, logits.size(0));
        Checks.matrix(stream, "sums", sums, DType.FLOAT32, sumRows(labelSmoothing), logits.size(0));
        Checks.writable("sums", sums);
        Checks.apart("sums", sums, "logits", logits);
        Checks.apart("sums", sums, "labels", labels);
        Checks.apart("sums", sums, "maximum", maximum);
        Status.ops(
                Ops.ops_vocabulary_cross_entropy_sums(
                        logits.address(),
                        labels.address(),
                        maximum.address(),
                        labelSmoothing,
                        sums.address(),
                        logits.size(0),
                        classes,
                        logits.size(1),
                        first,
                        logits.dtype().code(),
                        stream.handle()),
                "ops_vocabulary_cross_entropy_sums");
    }

    /**
     * Enqueues {@code logSumExp[t] = maximum[t] + log(sums[0, t])}, {@code l[t] = logSumExp[t] - (1 - e) sums[1, t] - e 2^32 sums[2, t] /
     * classes} for labels among the classes, else 0, and {@code loss = sum of l[t] / divisor}, 0 where the divisor is not above 0.
     *
     * @param maximum FLOAT32 [T], that of all ranks
     * @param sums FLOAT32 [{@link #sumRows}, T], those of all ranks
     * @param labels INT32 [T]; tokens with one outside 0 to {@code classes - 1} are ignored
     * @param classes of all ranks together, at least 1
     * @param labelSmoothing e, 0 to 1
     * @param divisor INT32 [1], such as the tokens counted in all micro-batches of a step; null: the tokens counted here
     * @param logSumExp FLOAT32 [T], what {@link #backward} needs
     * @param tokenLosses FLOAT32 [T]: receives l; may be null
     * @param loss FLOAT32 [1]
     * @param counted INT32 [1]: receives the number of tokens that are not left out
     * @throws IllegalArgumentException when shapes, types, numbers or devices do not fit, or what is written shares memory
     */
    public static void loss(
            Tensor maximum,
            Tensor sums,
            Tensor labels,
            long classes,
            float labelSmoothing,
            @Nullable Tensor divisor,
            Tensor logSumExp,
            @Nullable Tensor tokenLosses,
            Tensor loss,
            Tensor counted,
            Stream stream) {
        checkClasses(classes);
        CrossEntropyChecks.labelSmoothing(labelSmoothing);
        long tokens = Checks.on(stream, "maximum", maximum).count();
        Checks.vector(stream, "maximum", maximum, DType.FLOAT32, tokens);
        Checks.matrix(stream, "sums", sums, DType.FLOAT32, sumRows(labelSmoothing), tokens);
        Checks.vector(stream, "labels", labels, DType.INT32, tokens);
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, tokens);
        Checks.vector(stream, "loss", loss, DType.FLOAT32, 1);
        Checks.vector(stream, "counted", counted, DType.INT32, 1);
        if (divisor != null) {
            Checks.vector(stream, "divisor", divisor, DType.INT32, 1);
        }
        checkWritten("logSumExp", logSumExp, maximum, sums, labels, divisor);
        checkWritten("loss", loss, maximum, sums, labels, divisor);
        checkWritten("counted", counted, maximum, sums, labels, divisor);
        Checks.apart("loss", loss, "logSumExp", logSumExp);
        Checks.apart("counted", counted, "logSumExp", logSumExp);
        Checks.apart("counted", counted, "loss", loss);
        if (tokenLosses != null) {
            Checks.vector(stream, "tokenLosses", tokenLosses, DType.FLOAT32, tokens);
            checkWritten("tokenLosses", tokenLosses, maximum, sums, labels, divisor);
            Checks.apart("tokenLosses", tokenLosses, "logSumExp", logSumExp);
            Checks.apart("tokenLosses", tokenLosses, "loss", loss);
            Checks.apart("tokenLosses", tokenLosses, "counted", counted);
        }
        Status.ops(
                Ops.ops_vocabulary_cross_entropy_loss(
                        maximum.address(),
                        sums.address(),
                        labels.address(),
                        Checks.addressOrNull(divisor),
                        labelSmoothing,
                        logSumExp.address(),
                        Checks.addressOrNull(tokenLosses),
                        loss.address(),
                        counted.address(),
                        tokens,
                        classes,
                        stream.handle()),
                "ops_vocabulary_cross_entropy_loss");
    }

    /**
     * Enqueues {@code dlogits[t] = factor lossScale tokenGradients[t] / divisor dl[t]/dlogits[t]} of the rank's columns; ignored tokens,
     * and columns of padding, get 0.
     *
     * @param logits floating-point numbers [T, at least classes]
     * @param labels INT32 [T]
     * @param first index of the rank's first class
     * @param classes of this rank, at least 0
     * @param allClasses of all ranks together, at least {@code first + classes}
     * @param labelSmoothing that of forward
     * @param logSumExp what {@link #loss} wrote
     * @param divisor INT32 [1]: that of the loss or, where it was null, the count that it wrote; null: 1
     * @param factor on the loss, finite
     * @param lossScale FLOAT32 [1]; null: 1
     * @param tokenGradients FLOAT32 [T], the gradient of each token's loss; null: 1 each
     * @param dlogits like the logits; may be the logits
     * @throws IllegalArgumentException when shapes, types, numbers or devices do not fit, or dlogits shares memory otherwise
     */
    public static void backward(
            Tensor logits,
            Tensor labels,
            long first,
            long classes,
            long allClasses,
            float labelSmoothing,
            Tensor logSumExp,
            @Nullable Tensor divisor,
            float factor,
            @Nullable Tensor lossScale,
            @Nullable Tensor tokenGradients,
            Tensor dlogits,
            Stream stream) {
        checkLogits(logits, classes, stream);
        checkFirst(first, classes);
        checkClasses(allClasses);
        if (first > allClasses - classes) {
            throw new IllegalArgumentException("allClasses: expected at least first + classes, " + first + " + "
                    + classes + ", got " + allClasses);
        }
        CrossEntropyChecks.labelSmoothing(labelSmoothing);
        Checks.vector(stream, "labels", labels, DType.INT32, logits.size(0));
        CrossEntropyGradient.enqueue(
                logits,
                labels,
                first,
                classes,
                allClasses,
                labelSmoothing,
                logSumExp,
                divisor,
                factor,
                lossScale,
                tokenGradients,
                dlogits,
                stream);
    }

    private static void checkLogits(Tensor logits, long classes, Stream stream) {
        if (classes < 0) {
            throw new IllegalArgumentException("classes: expected at least 0, got " + classes);
        }
        CrossEntropyChecks.logits(logits, classes, stream);
    }

    private static void checkFirst(long first, long classes) {
        if (first < 0) {
            throw new IllegalArgumentException("first: expected at least 0, got " + first);
        }
        if (first > MOST_CLASSES - classes) {
            throw new IllegalArgumentException("first: expected classes that labels of INT32 can name, at most "
                    + MOST_CLASSES + ", got " + classes + " from " + first + " on");
        }
    }

    private static void checkClasses(long classes) {
        if (classes < 1) {
            throw new IllegalArgumentException("classes: expected at least 1 of all ranks together, got " + classes);
        }
    }

    private static void checkWritten(
            String argument, Tensor tensor, Tensor maximum, Tensor sums, Tensor labels, @Nullable Tensor divisor) {
        Checks.writable(argument, tensor);
        Checks.apart(argument, tensor, "maximum", maximum);
        Checks.apart(argument, tensor, "sums", sums);
        Checks.apart(argument, tensor, "labels", labels);
        if (divisor != null) {
            Checks.apart(argument, tensor, "divisor", divisor);
        }
    }
}
