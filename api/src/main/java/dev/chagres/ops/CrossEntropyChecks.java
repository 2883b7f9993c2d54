package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * Checks that {@link CrossEntropy} and {@link VocabularyCrossEntropy} share.
 *
 * <p>Threading: the device's thread.
 */
final class CrossEntropyChecks {
    private CrossEntropyChecks() {}

    static void labelSmoothing(float labelSmoothing) {
        if (!(labelSmoothing >= 0 && labelSmoothing <= 1)) {
            throw new IllegalArgumentException("labelSmoothing: expected 0 to 1, got " + labelSmoothing);
        }
    }

    /** Checks logits of {@code classes} classes, behind which there may be columns of padding. */
    static void logits(Tensor logits, long classes, Stream stream) {
        Checks.on(stream, "logits", logits);
        if (logits.rank() != 2 || logits.size(1) < classes || !logits.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    "logits: expected [T, at least " + classes + " columns] of floats, got " + Checks.describe(logits));
        }
    }
}
