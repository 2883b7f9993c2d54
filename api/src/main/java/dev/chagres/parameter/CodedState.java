package dev.chagres.parameter;

import dev.chagres.internal.Checks;
import dev.chagres.ops.StepState;
import dev.chagres.parallel.ParameterSplit;

/**
 * Two tensors of a {@link State} that are one state of eight bits: a code for each element of a parameter, and the scales that their numbers are
 * multiplied by.
 *
 * <p>In memory a scale belongs to 256 neighbours in the part of a parameter that a rank has. In a file it belongs to {@link #unit} neighbours in
 * the whole parameter, each of which has the scale of the 256 that it was among. So a file tells whose scale is whose, whatever ranks have
 * written it, and a state that is loaded by ranks with the same parts has the same bits. Where other ranks load it, codes whose scales
 * differ now share one: the largest magnitude is their scale, and each gets the code of the nearest number, as in a step.
 *
 * <p>Threading: immutable.
 *
 * @param codes name of the codes
 * @param scales name of the scales
 * @param kind which numbers the codes stand for
 * @param split which elements of the parameter have their blocks on which rank
 */
public record CodedState(String codes, String scales, StepState.Codes kind, ParameterSplit split) {
    /** Checks that nothing is missing. */
    public CodedState {
        Checks.given("codes", codes, "scales", scales, "kind", kind, "split", split);
    }

    /** Returns how many neighbours share a scale in a file that these ranks write: 256, or a divisor of it. */
    public int unit() {
        return (int) split.unit(StepState.BLOCK);
    }

    /** Returns how many scales such a file has. */
    public long units() {
        return Math.ceilDiv(split.whole().count(), (long) unit());
    }
}
