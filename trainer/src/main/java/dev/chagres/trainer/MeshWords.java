package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Set;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/** Reads sizes by dimension, such as {@code replicate=2,shard=4}. */
final class MeshWords implements ITypeConverter<MeshShape> {
    @Override
    public MeshShape convert(String value) {
        MeshShape shape = MeshShape.ofOne();
        Set<MeshDimension> named = EnumSet.noneOf(MeshDimension.class);
        for (String part : value.split(",", -1)) {
            String[] words = part.split("=", -1);
            MeshDimension dimension = dimension(words[0], value);
            if (words.length != 2) {
                throw wrong("numbers of ranks, such as replicate=2,shard=4", value);
            }
            if (!named.add(dimension)) {
                throw wrong("each dimension once", words[0] + " a second time in " + value);
            }
            shape = with(shape, dimension, words[1], value);
        }
        return shape;
    }

    private static MeshShape with(MeshShape shape, MeshDimension dimension, String size, String value) {
        int ranks;
        try {
            ranks = Integer.parseInt(size);
        } catch (NumberFormatException e) {
            throw wrong("numbers of ranks, such as replicate=2,shard=4", value);
        }
        try {
            return shape.with(dimension, ranks);
        } catch (IllegalArgumentException e) {
            throw new TypeConversionException(
                    String.valueOf(e.getMessage()).replace("size: ", "") + " in " + ForeignText.plain(value));
        }
    }

    private static MeshDimension dimension(String word, String value) {
        return switch (word.toLowerCase(Locale.ROOT)) {
            case "replicate" -> MeshDimension.REPLICATE;
            case "shard" -> MeshDimension.SHARD;
            case "tensor" -> MeshDimension.TENSOR;
            case "pipeline" -> MeshDimension.PIPELINE;
            case "context" -> MeshDimension.CONTEXT;
            default ->
                throw wrong(
                        "pipeline, replicate, shard, context or tensor, each with a number of ranks,"
                                + " such as replicate=2,shard=4",
                        value);
        };
    }

    private static TypeConversionException wrong(String expected, String got) {
        return new TypeConversionException("expected " + expected + ", got " + got);
    }
}
