package dev.chagres.parameter;

import dev.chagres.internal.Checks;
import java.util.List;

/**
 * A group of the plan, and the place of its gradients.
 *
 * <p>Threading: immutable.
 *
 * @param name its full name, empty for parameters of no group
 * @param members its parameters, in the order of their declaration
 * @param gradientOffset first element in the gradients of all groups
 * @param gradientCount elements, including those between parameters; 0 if all are frozen
 * @param pieces ranges with the same type, frozen or trained, in the order of memory
 */
public record FlatGroup(
        String name, List<Parameter> members, long gradientOffset, long gradientCount, List<FlatParameter> pieces) {
    /** Checks that everything is there, and copies the lists. */
    public FlatGroup {
        Checks.given("name", name);
        members = Checks.givenAll("members", members);
        pieces = Checks.givenAll("pieces", pieces);
    }
}
