package dev.chagres.sharding;

import dev.chagres.internal.Inside;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Tells what was lost with failed ranks of a mesh that splits a model by layers, by heads and columns, or by tokens.
 *
 * <p>Threading: the device's thread.
 *
 * @param own this rank's number in the mesh
 */
record LostLayers(Parameters parameters, MeshShape shape, int own) {
    /** Returns the known failed ranks of communicators of the parameters' device, by their numbers in the mesh. */
    static List<Integer> failed(Parameters parameters) {
        try {
            Inside.state(parameters.scope().stream()).waits().checkAll();
            return List.of();
        } catch (RankFailedException failure) {
            return failure.ranks();
        }
    }

    /**
     * Returns the end of an error's text, which begins with a semicolon: what was lost with failed ranks. If no rank or no mesh is known,
     * it says only what to do.
     *
     * @param communicator of ranks that have the same layers, heads and columns
     */
    static String explain(Parameters parameters, Communicator communicator) {
        Mesh mesh = Mesh.owning(communicator);
        List<Integer> lost = new ArrayList<>(new TreeSet<>(failed(parameters)));
        if (mesh == null || lost.isEmpty() || lost.getLast() >= mesh.shape().ranks()) {
            return "; start again from a saved state";
        }
        LostLayers layers =
                new LostLayers(parameters, mesh.shape(), mesh.world().rank());
        return "; " + lost.stream().map(rank -> layers.explain(rank, lost)).collect(Collectors.joining("\n"));
    }

    private String explain(int rank, Collection<Integer> lost) {
        List<Integer> others = IntStream.range(0, shape.ranks())
                .filter(other -> !lost.contains(other) && isAlike(rank, other))
                .boxed()
                .toList();
        String tokens = shape.size(MeshDimension.CONTEXT) == 1
                ? ""
                : "part " + shape.coordinate(MeshDimension.CONTEXT, rank) + " of " + shape.size(MeshDimension.CONTEXT)
                        + " of the tokens, and ";
        return "with rank " + rank + " went " + tokens + what(rank)
                + (others.isEmpty()
                        ? "\nno other rank has that: start again from a saved state"
                        : "\nranks " + others + " have the same; start again from a saved state");
    }

    private boolean isAlike(int rank, int other) {
        return shape.coordinate(MeshDimension.PIPELINE, rank) == shape.coordinate(MeshDimension.PIPELINE, other)
                && shape.coordinate(MeshDimension.TENSOR, rank) == shape.coordinate(MeshDimension.TENSOR, other);
    }

    /** Names the part of the model that a rank has, by its coordinates along PIPELINE and TENSOR. */
    String what(int rank) {
        int stage = shape.coordinate(MeshDimension.PIPELINE, rank);
        int parts = shape.size(MeshDimension.TENSOR);
        List<Parameter> all = stage == shape.coordinate(MeshDimension.PIPELINE, own)
                ? parameters.all()
                : parameters.access().ofStages(stage);
        List<String> names = all.stream()
                .filter(parameter -> parts == 1 || parameter.split() != null)
                .map(Parameter::name)
                .toList();
        String stages = shape.size(MeshDimension.PIPELINE) == 1
                ? ""
                : "the stages of pipeline rank " + stage + " of " + shape.size(MeshDimension.PIPELINE);
        String split = parts == 1
                ? ""
                : "part " + shape.coordinate(MeshDimension.TENSOR, rank) + " of " + parts
                        + " of the heads, columns and vocabulary";
        String where = stages.isEmpty() || split.isEmpty() ? split + stages : split + " of " + stages;
        return (where.isEmpty() ? "a copy of:" : stages.isEmpty() ? where + " of:" : where + ":")
                + (names.isEmpty() ? "" : "\n  ")
                + String.join(", ", names);
    }
}
