package dev.chagres.layer;

import dev.chagres.attention.Sequences.Padding;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.BiasType;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;

/**
 * The problems that one attention may compute, in TE's terms, made beforehand so that calls make no garbage.
 *
 * <p>Threading: immutable.
 */
final class AttentionProblems {
    private static final int PADDINGS = Padding.values().length;
    private static final int BIAS_TYPES = BiasType.values().length;

    private final AttentionProblem[] plain;
    private final AttentionProblem[] dropping;
    /** By type of the bias. */
    private final AttentionProblem[][] changed = new AttentionProblem[BIAS_TYPES][];

    private final AttentionProblem[][] changedDropping = new AttentionProblem[BIAS_TYPES][];

    AttentionProblems(AttentionConfig config) {
        QkvLayout[] layouts = QkvLayout.values();
        plain = new AttentionProblem[layouts.length * PADDINGS];
        dropping = new AttentionProblem[plain.length];
        for (QkvLayout layout : layouts) {
            for (Padding padding : Padding.values()) {
                int index = index(layout, padding);
                AttentionProblem problem = AttentionProblem.of(layout, config.scale())
                        .withMask(config.mask().type(padding))
                        .withWindow(config.mask().windowLeft(), config.mask().windowRight());
                plain[index] = config.order() == Order.DETERMINISTIC ? problem.deterministic() : problem;
                dropping[index] = plain[index].withDropout(config.dropout().probability());
            }
        }
        for (BiasType biasType : BiasType.values()) {
            changed[biasType.ordinal()] = changed(plain, biasType, config.softmaxType());
            changedDropping[biasType.ordinal()] = changed(dropping, biasType, config.softmaxType());
        }
    }

    private static AttentionProblem[] changed(AttentionProblem[] from, BiasType biasType, SoftmaxType softmaxType) {
        if (biasType == BiasType.NO_BIAS && softmaxType == SoftmaxType.VANILLA) {
            return from;
        }
        AttentionProblem[] problems = new AttentionProblem[from.length];
        for (int i = 0; i < from.length; i++) {
            problems[i] = from[i].withBiasType(biasType).withSoftmaxType(softmaxType);
        }
        return problems;
    }

    /** Returns the problem without what becomes of scores: it is said to our own kernels elsewhere. */
    AttentionProblem get(QkvLayout layout, Padding padding, boolean drops) {
        return (drops ? dropping : plain)[index(layout, padding)];
    }

    /** Returns the problem with a bias of this type and the softmax of the configuration, as cuDNN's kernels are told. */
    AttentionProblem get(QkvLayout layout, Padding padding, boolean drops, BiasType biasType) {
        return (drops ? changedDropping : changed)[biasType.ordinal()][index(layout, padding)];
    }

    private static int index(QkvLayout layout, Padding padding) {
        return layout.ordinal() * PADDINGS + padding.ordinal();
    }
}
