package dev.chagres.model;

import dev.chagres.internal.Checks;
import java.util.List;

/**
 * A group of the plan, and where its gradients lie.
 *
 * <p>Threading: immutable.
 *
 * @param name its full name, empty for what belongs to none
 * @param members its parameters, in the order of their declaration
 * @param gradientOffset first element in the gradients of all groups
 * @param gradientCount elements, with those between parameters; 0 where all are frozen
 * @param pieces what of it is alike, in the order of memory
 */
public record PlacedGroup(
        String name, List<Parameter> members, long gradientOffset, long gradientCount, List<GroupPiece> pieces) {
    /** Checks that everything is there, and copies the lists. */
    public PlacedGroup {
        Checks.given("name", name);
        members = List.copyOf(Checks.given("members", members));
        pieces = List.copyOf(Checks.given("pieces", pieces));
    }
}
