package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;

/**
 * A norm of each head of query and key, over its d elements, which bounds the scores. {@link #none} is no norm; {@link #of} has TE's
 * epsilon and comes after the rotation, as in TE.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code qk_norm_type}, {@code qk_norm_eps} and {@code qk_norm_before_rope} of TE's {@code MultiheadAttention}.
 *
 * @param kind which norm
 * @param epsilon added under the root, positive
 * @param place before or after the rotation
 */
public record QkNorm(Kind kind, float epsilon, Place place) {
    private static final float EPSILON = 1e-6f;

    /** Kinds of norm. */
    public enum Kind {
        /** None. */
        NONE,
        /** {@code x / sqrt(mean(x^2) + epsilon) * weight}, with a weight [d] for the query and one for the key. */
        RMS_NORM,
        /** {@code (x - mean) / sqrt(variance + epsilon) * weight + bias}, weight and bias [d] likewise. */
        LAYER_NORM,
        /** {@code x / sqrt(sum(x^2) + epsilon)}, without parameters. */
        L2
    }

    /** The position of the norm. */
    public enum Place {
        /** After the rotation. */
        AFTER_ROTATION,
        /** Before the rotation. */
        BEFORE_ROTATION
    }

    /**
     * Checks the number.
     *
     * @throws IllegalArgumentException when epsilon is not positive
     */
    public QkNorm {
        Checks.given("kind", kind, "place", place);
        Numbers.positive("epsilon", epsilon);
    }

    /** No norm. */
    public static QkNorm none() {
        return of(Kind.NONE);
    }

    /** This norm with TE's epsilon, 1e-6, after the rotation. */
    public static QkNorm of(Kind kind) {
        return new QkNorm(kind, EPSILON, Place.AFTER_ROTATION);
    }

    /** Returns the same with another epsilon. */
    public QkNorm withEpsilon(float newEpsilon) {
        return new QkNorm(kind, newEpsilon, place);
    }

    /** Returns the same at another place. */
    public QkNorm withPlace(Place newPlace) {
        return new QkNorm(kind, epsilon, newPlace);
    }

    /** Returns whether there is none. */
    public boolean isNone() {
        return kind == Kind.NONE;
    }
}
