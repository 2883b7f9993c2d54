package dev.chagres.layer;

import dev.chagres.attention.Sequences.Padding;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.QkvLayout;

/**
 * The problems that one attention can be asked, in TE's terms, made beforehand so that calls make none.
 *
 * <p>Threading: immutable.
 */
final class AttentionProblems {
    private static final int PADDINGS = Padding.values().length;

    private final AttentionProblem[] plain;
    private final AttentionProblem[] dropping;

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
    }

    AttentionProblem get(QkvLayout layout, Padding padding, boolean drops) {
        return (drops ? dropping : plain)[index(layout, padding)];
    }

    private static int index(QkvLayout layout, Padding padding) {
        return layout.ordinal() * PADDINGS + padding.ordinal();
    }
}
