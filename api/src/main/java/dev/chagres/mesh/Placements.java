package dev.chagres.mesh;

import dev.chagres.internal.Checks;
import dev.chagres.mesh.Placement.Partial;
import dev.chagres.mesh.Placement.Replicate;
import java.util.EnumMap;
import java.util.Locale;
import java.util.Map;

/**
 * The placement of a tensor along each dimension of a mesh: {@code Placements.replicated().with(SHARD, Placement.shard(0))}. If several
 * dimensions shard one dimension of the tensor, the first one of {@link MeshDimension} splits first, and the next one splits its slices.
 *
 * <p>Threading: immutable.
 */
public final class Placements {
    private final Map<MeshDimension, Placement> placements;

    private Placements(Map<MeshDimension, Placement> placements) {
        this.placements = placements;
    }

    /** Returns the placements of a tensor that each rank has whole. */
    public static Placements replicated() {
        return new Placements(new EnumMap<>(MeshDimension.class));
    }

    /** Returns the same with {@code placement} along {@code dimension}. */
    public Placements with(MeshDimension dimension, Placement placement) {
        Map<MeshDimension, Placement> changed = new EnumMap<>(MeshDimension.class);
        changed.putAll(placements);
        Checks.given("dimension", dimension);
        if (Checks.given("placement", placement) instanceof Replicate) {
            changed.remove(dimension);
        } else {
            changed.put(dimension, placement);
        }
        return new Placements(changed);
    }

    /** Returns the placement along {@code dimension}. */
    public Placement along(MeshDimension dimension) {
        return placements.getOrDefault(Checks.given("dimension", dimension), new Replicate());
    }

    /** Returns whether ranks have terms of a sum along some dimension. */
    public boolean isPartial() {
        return placements.values().stream().anyMatch(Partial.class::isInstance);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Placements same && placements.equals(same.placements);
    }

    @Override
    public int hashCode() {
        return placements.hashCode();
    }

    /** Returns the placements that are not Replicate, such as {@code shard=Shard[dimension=0]}; {@code replicated} when all are. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        placements.forEach((dimension, placement) -> text.append(text.isEmpty() ? "" : ", ")
                .append(dimension.name().toLowerCase(Locale.ROOT))
                .append('=')
                .append(placement));
        return text.isEmpty() ? "replicated" : text.toString();
    }
}
