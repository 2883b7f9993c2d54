package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.CrossEntropy.Factors;
import org.jspecify.annotations.Nullable;

/**
 * Cross-entropy of logits whose classes are sharded among ranks: what {@link CrossEntropy} computes for all columns, in three steps. The
 * results of the first two are all-reduced before the next one: {@code maximum} with MAX, {@code sums} with SUM.
 *
 * <p>The logits z of a rank are floating-point numbers [T, columns]; its first {@code classes} columns are classes {@code first} to {@code
 * first + classes - 1}, the others are padding. A rank may have no class, and no column. Labels are INT32 [T]. Arithmetic is FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_vocabulary_cross_entropy_maximum}, {@code ops_vocabulary_cross_entropy_sums}, {@code
 * ops_vocabulary_cross_entropy_loss}, {@code ops_cross_entropy_backward} in {@code ops.h}; Megatron-LM's {@code
 * _VocabParallelCrossEntropy}.
 *
 * @param first index of the rank's first class, at least 0
 * @param classes of this rank, at least 0
 * @param allClasses of all ranks together, at least {@code first + classes} and 1
 * @param labelSmoothing e, 0 to 1
 */
public record VocabularyCrossEntropy(long first, long classes, long allClasses, float labelSmoothing) {
    /** As many as labels of INT32 can name. */
    private static final long MOST_CLASSES = 1L << 31;

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is outside
     */
    public VocabularyCrossEntropy {
        Numbers.atLeastZero("classes", classes);
        Numbers.atLeastZero("first", first);
        if (first > MOST_CLASSES - classes) {
            throw new IllegalArgumentException("first: expected classes that labels of INT32 can name, at most "
                    + MOST_CLASSES + ", got " + classes + " from " + first + " on");
        }
        Checks.atLeastOne("allClasses", allClasses);
        if (first > allClasses - classes) {
            throw new IllegalArgumentException("allClasses: expected at least first + classes, " + first + " + "
                    + classes + ", got " + allClasses);
        }
        if (!(labelSmoothing >= 0 && labelSmoothing <= 1)) {
            throw new IllegalArgumentException("labelSmoothing: expected 0 to 1, got " + labelSmoothing);
        }
    }

    /**
     * Enqueues {@code maximum[t] = max of z[t, c] over the rank's classes c}, negative infinity if it has none. NaN is ignored.
     *
     * @param maximum FLOAT32 [T]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or maximum shares memory with the logits
     */
    public void maximum(Tensor logits, Tensor maximum, Stream stream) {
        checkLogits(logits, stream);
        Checks.vector(stream, "maximum", maximum, DType.FLOAT32, logits.size(0));
        Checks.written("maximum", maximum, "logits", logits);
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

    /** Returns how many rows {@link #sums} writes: 2, and with label smoothing 3. */
    public long sumRows() {
        return labelSmoothing == 0 ? 2 : 3;
    }

    /**
     * Enqueues {@code sums[0, t] = sum of exp(z[t, c] - maximum[t])} over the rank's classes c, where an infinite maximum counts as 0;
     * {@code sums[1, t] = z[t, label[t] - first]} where the label is a class of the rank, else 0; and with label smoothing {@code sums[2,
     * t] = 2^-32 sum of z[t, c]}, which overflows for no finite logits.
     *
     * @param maximum FLOAT32 [T], that of all ranks
     * @param sums FLOAT32 [{@link #sumRows}, T]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the sums share memory with another tensor
     */
    public void sums(Tensor logits, Tensor labels, Tensor maximum, Tensor sums, Stream stream) {
        checkLogits(logits, stream);
        Checks.vector(stream, "labels", labels, DType.INT32, logits.size(0));
        Checks.vector(stream, "maximum", maximum, DType.FLOAT32, logits.size(0));
        Checks.matrix(stream, "sums", sums, DType.FLOAT32, sumRows(), logits.size(0));
        Checks.written("sums", sums, "logits", logits, "labels", labels);
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
     * Enqueues {@code logSumExp[t] = maximum[t] + log(sums[0, t])} in the place of the maximum, {@code l[t] = logSumExp[t] - (1 - e)
     * sums[1, t] - e 2^32 sums[2, t] / allClasses} for labels among all classes, else 0, and {@code loss = sum of l[t] / divisor}, 0 where
     * the divisor is not above 0.
     *
     * @param logSumExp FLOAT32 [T], the maximum of all ranks; becomes what {@link #backward} needs
     * @param sums FLOAT32 [{@link #sumRows}, T], those of all ranks
     * @param labels INT32 [T]; tokens with one outside 0 to {@code allClasses - 1} are ignored
     * @param divisor INT32 [1], such as the tokens counted in all micro-batches of a step; null: the tokens counted here
     * @param tokenLosses FLOAT32 [T]: receives l; may be null
     * @param loss FLOAT32 [1]
     * @param counted INT32 [1]: receives the number of tokens that are not left out
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public void loss(
            Tensor logSumExp,
            Tensor sums,
            Tensor labels,
            @Nullable Tensor divisor,
            @Nullable Tensor tokenLosses,
            Tensor loss,
            Tensor counted,
            Stream stream) {
        long tokens = Checks.on(stream, "logSumExp", logSumExp).count();
        Checks.matrix(stream, "sums", sums, DType.FLOAT32, sumRows(), tokens);
        Checks.vector(stream, "labels", labels, DType.INT32, tokens);
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, tokens);
        Checks.vector(stream, "loss", loss, DType.FLOAT32, 1);
        Checks.vector(stream, "counted", counted, DType.INT32, 1);
        if (divisor != null) {
            Checks.vector(stream, "divisor", divisor, DType.INT32, 1);
        }
        if (tokenLosses != null) {
            Checks.vector(stream, "tokenLosses", tokenLosses, DType.FLOAT32, tokens);
        }
        CallMemory.of(stream)
                .read("sums", sums)
                .read("labels", labels)
                .read("divisor", divisor)
                .written("logSumExp", logSumExp)
                .written("loss", loss)
                .written("counted", counted)
                .written("tokenLosses", tokenLosses);
        Status.ops(
                Ops.ops_vocabulary_cross_entropy_loss(
                        logSumExp.address(),
                        sums.address(),
                        labels.address(),
                        Checks.addressOrNull(divisor),
                        labelSmoothing,
                        logSumExp.address(),
                        Checks.addressOrNull(tokenLosses),
                        loss.address(),
                        counted.address(),
                        tokens,
                        allClasses,
                        stream.handle()),
                "ops_vocabulary_cross_entropy_loss");
    }

    /**
     * Enqueues {@code dlogits[t] = factor lossScale tokenGradients[t] / divisor dl[t]/dlogits[t]} of the rank's columns; ignored tokens,
     * and columns of padding, get 0.
     *
     * @param logSumExp what {@link #loss} wrote
     * @param divisor INT32 [1]: that of the loss or, where it was null, the count that it wrote; null: 1
     * @param dlogits like the logits; may be the logits
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dlogits shares memory otherwise
     */
    public void backward(
            Tensor logits,
            Tensor labels,
            Tensor logSumExp,
            @Nullable Tensor divisor,
            Factors factors,
            Tensor dlogits,
            Stream stream) {
        checkLogits(logits, stream);
        Checks.vector(stream, "labels", labels, DType.INT32, logits.size(0));
        Checks.vector(stream, "logSumExp", logSumExp, DType.FLOAT32, logits.size(0));
        Checks.given("factors", factors);
        Tensor lossScale = factors.lossScale();
        Tensor tokenGradients = factors.tokenGradients();
        Checks.like(stream, "dlogits", dlogits, logits);
        Checks.writable("dlogits", dlogits);
        Checks.apartOrSame("dlogits", dlogits, "logits", logits);
        Checks.apart("dlogits", dlogits, "labels", labels, "logSumExp", logSumExp);
        checkRead("divisor", divisor, DType.INT32, 1, dlogits, stream);
        checkRead("lossScale", lossScale, DType.FLOAT32, 1, dlogits, stream);
        checkRead("tokenGradients", tokenGradients, DType.FLOAT32, logits.size(0), dlogits, stream);
        Status.ops(
                Ops.ops_cross_entropy_backward(
                        logits.address(),
                        labels.address(),
                        logSumExp.address(),
                        Checks.addressOrNull(divisor),
                        factors.factor(),
                        Checks.addressOrNull(lossScale),
                        Checks.addressOrNull(tokenGradients),
                        labelSmoothing,
                        dlogits.address(),
                        logits.size(0),
                        classes,
                        logits.size(1),
                        first,
                        allClasses,
                        logits.dtype().code(),
                        stream.handle()),
                "ops_cross_entropy_backward");
    }

    /** Checks an optional input of backward. */
    private static void checkRead(
            String argument, @Nullable Tensor tensor, DType dtype, long count, Tensor dlogits, Stream stream) {
        if (tensor != null) {
            Checks.vector(stream, argument, tensor, dtype, count);
            Checks.apart("dlogits", dlogits, argument, tensor);
        }
    }

    /** Checks logits of the rank's classes, behind which there may be columns of padding. */
    void checkLogits(Tensor logits, Stream stream) {
        Checks.on(stream, "logits", logits);
        if (logits.rank() != 2 || logits.size(1) < classes || !logits.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    "logits: expected [T, at least " + classes + " columns] of floats, got " + Checks.describe(logits));
        }
    }
}
