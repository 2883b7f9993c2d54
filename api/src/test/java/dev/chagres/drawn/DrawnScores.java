package dev.chagres.drawn;

import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.Tuple;

/**
 * What is done with the scores of one attention of a layer, beside what its configuration says.
 *
 * @param slopes of linear biases
 * @param bias what is added
 * @param biasOf whom an element of the bias is of
 * @param slack rows and columns of the bias and the mask beyond the longest sequences
 * @param mask whether some keys are hidden from some queries
 * @param maskOf whom an element of the mask is of
 */
record DrawnScores(Slopes slopes, Added bias, Owner biasOf, int slack, Mask mask, Owner maskOf) {
    /** Linear biases. */
    enum Slopes {
        NONE,
        USUAL,
        GIVEN
    }

    /** An additive bias. */
    enum Added {
        NOTHING,
        BIAS,
        /** One whose gradient nobody wants. */
        FIXED_BIAS,
        BEFORE_SCALE
    }

    /** A mask by element. */
    enum Mask {
        NONE,
        BY_ELEMENT
    }

    /** Whom an element of a bias or of a mask is of. */
    enum Owner {
        ALL,
        HEAD,
        SEQUENCE,
        HEAD_OF_SEQUENCE;

        int sequences(int all) {
            return this == SEQUENCE || this == HEAD_OF_SEQUENCE ? all : 1;
        }

        int heads(int all) {
            return this == HEAD || this == HEAD_OF_SEQUENCE ? all : 1;
        }
    }

    static final DrawnScores PLAIN = new DrawnScores(Slopes.NONE, Added.NOTHING, Owner.ALL, 0, Mask.NONE, Owner.ALL);

    boolean isPlain() {
        return slopes == Slopes.NONE && bias == Added.NOTHING && mask == Mask.NONE;
    }

    /** An L2 norm of the heads takes no bias before the scale. */
    DrawnScores withoutBiasBeforeScale() {
        return bias == Added.BEFORE_SCALE ? new DrawnScores(slopes, Added.BIAS, biasOf, slack, mask, maskOf) : this;
    }

    static Arbitrary<DrawnScores> any() {
        Arbitrary<DrawnScores> changed = Combinators.combine(
                        Arbitraries.frequency(
                                Tuple.of(3, Slopes.NONE), Tuple.of(1, Slopes.USUAL), Tuple.of(1, Slopes.GIVEN)),
                        Arbitraries.of(Added.class),
                        Arbitraries.of(Owner.class),
                        Arbitraries.of(0, 0, 3),
                        Arbitraries.frequency(Tuple.of(2, Mask.NONE), Tuple.of(1, Mask.BY_ELEMENT)),
                        Arbitraries.of(Owner.class))
                .as(DrawnScores::new);
        // One change by itself is what cuDNN's kernels take.
        DrawnScores usual = new DrawnScores(Slopes.USUAL, Added.NOTHING, Owner.ALL, 0, Mask.NONE, Owner.ALL);
        Arbitrary<DrawnScores> biased = Combinators.combine(
                        Arbitraries.of(Added.BIAS, Added.FIXED_BIAS), Arbitraries.of(Owner.class))
                .as((added, owner) -> new DrawnScores(Slopes.NONE, added, owner, 0, Mask.NONE, Owner.ALL));
        return Arbitraries.frequencyOf(
                Tuple.of(4, Arbitraries.just(PLAIN)),
                Tuple.of(1, Arbitraries.just(usual)),
                Tuple.of(1, biased),
                Tuple.of(3, changed));
    }
}
