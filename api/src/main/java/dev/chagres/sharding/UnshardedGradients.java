package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterAccess;
import dev.chagres.sharding.UnshardedGroups.UnshardedWeights;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/**
 * Gradients of groups, a vector a trained piece, FP32. Where ranks sum in the 16 bits of a piece's weights, and products alone write some of
 * its gradients, the vector has that type: products write it, and the gradients of the piece's other members are FP32 in a vector beside it,
 * from which they are cast before the sum.
 *
 * <p>Threading: the device's thread.
 */
final class UnshardedGradients implements FlatBufferContent {
    private static final int NONE = -1;

    /** Elements of a piece whose gradients are FP32, and where they lie in the vector beside it. */
    private record Beside(long begin, long count, long offset) {}

    /** The piece of a group that products write in 16 bits, or {@link #NONE}, and what lies beside it. */
    private record Narrow(int piece, List<Beside> besides) {
        /** Returns where a member lies beside the piece. */
        private long offset(long inPiece) {
            long offset = 0;
            for (Beside one : besides) {
                if (one.begin <= inPiece) {
                    offset = one.offset + inPiece - one.begin;
                }
            }
            return offset;
        }
    }

    private final ParameterAccess sharing;
    /** In which products write; FLOAT32 where they do so as everything else does. */
    private final DType productType;
    /** By group. */
    private final List<Narrow> narrow = new ArrayList<>();

    UnshardedGradients(ParameterAccess sharing, DType productType) {
        this.sharing = sharing;
        this.productType = productType;
        for (int group = 0; group < sharing.groups().size(); group++) {
            narrow.add(narrow(group));
        }
    }

    private Narrow narrow(int group) {
        List<FlatParameter> pieces = pieces(group);
        for (int i = 0; productType != DType.FLOAT32 && i < pieces.size(); i++) {
            FlatParameter piece = pieces.get(i);
            List<Parameter> held = members(group).stream()
                    .filter(piece::holds)
                    .sorted(Comparator.comparingLong(piece::offset))
                    .toList();
            if (piece.dtype() == productType && held.stream().anyMatch(Parameter::isWrittenByProducts)) {
                return new Narrow(i, besides(piece, held));
            }
        }
        return new Narrow(NONE, List.of());
    }

    /** Returns the stretches between the members that products write: neighbours of the others are one stretch. */
    private static List<Beside> besides(FlatParameter piece, List<Parameter> held) {
        List<Beside> all = new ArrayList<>();
        long offset = 0;
        int first = 0;
        while (first < held.size()) {
            int next = first;
            while (next < held.size() && !held.get(next).isWrittenByProducts()) {
                next++;
            }
            if (next > first) {
                long begin = piece.offset(held.get(first));
                long end = next < held.size() ? piece.offset(held.get(next)) : piece.count();
                all.add(new Beside(begin, end - begin, offset));
                offset += end - begin;
            }
            first = next + 1;
        }
        return all;
    }

    private List<Parameter> members(int group) {
        return sharing.groups().get(group).members();
    }

    /** Returns the pieces of a group that have gradients. */
    List<FlatParameter> pieces(int group) {
        return sharing.groups().get(group).pieces().stream()
                .filter(FlatParameter::isTrained)
                .toList();
    }

    /** Returns the elements of the longest piece whose vector has another type; 0 where all have this one. */
    long longestUnlike(DType dtype) {
        long longest = 0;
        for (int group = 0; group < narrow.size(); group++) {
            List<FlatParameter> pieces = pieces(group);
            for (int i = 0; i < pieces.size(); i++) {
                if (typeOf(group, i) != dtype) {
                    longest = Math.max(longest, pieces.get(i).count());
                }
            }
        }
        return longest;
    }

    private DType typeOf(int group, int piece) {
        return narrow.get(group).piece == piece ? productType : DType.FLOAT32;
    }

    /** Returns a vector for each piece, and one of what lies beside the piece in 16 bits where something does. */
    @Override
    public List<Vector> vectors(int group) {
        List<FlatParameter> pieces = pieces(group);
        List<Vector> all = new ArrayList<>();
        for (int i = 0; i < pieces.size(); i++) {
            all.add(new Vector(typeOf(group, i), pieces.get(i).count()));
        }
        List<Beside> besides = narrow.get(group).besides;
        if (!besides.isEmpty()) {
            all.add(new Vector(DType.FLOAT32, besides.getLast().offset + besides.getLast().count));
        }
        return all;
    }

    /** Returns a view for each member, and after them two for each stretch beside a piece: there, and in the piece. */
    @Override
    public Tensor[] views(int group, Tensor[] vectors, Scope scope) {
        List<FlatParameter> pieces = pieces(group);
        List<Parameter> members = members(group);
        Narrow own = narrow.get(group);
        int count = members.size();
        Tensor[] views =
                Arrays.copyOf(UnshardedWeights.views(pieces, members, vectors, scope), count + 2 * own.besides.size());
        if (own.besides.isEmpty()) {
            return views;
        }
        Tensor beside = vectors[pieces.size()];
        FlatParameter piece = pieces.get(own.piece);
        for (int i = 0; i < count; i++) {
            Parameter member = members.get(i);
            if (piece.holds(member) && !member.isWrittenByProducts()) {
                views[i] = scope.view(beside, own.offset(piece.offset(member)), member.shape());
            }
        }
        for (int i = 0; i < own.besides.size(); i++) {
            Beside one = own.besides.get(i);
            views[count + 2 * i] = scope.view(beside, one.offset, one.count);
            views[count + 2 * i + 1] = scope.view(vectors[own.piece], one.begin, one.count);
        }
        return views;
    }

    /** Enqueues casts of what lies beside the piece in 16 bits into it; {@code views} of the group. */
    void castBeside(int group, Tensor[] views, Stream stream) {
        for (int i = members(group).size(); i < views.length; i += 2) {
            Elementwise.cast(views[i], views[i + 1], stream);
        }
    }

    @Override
    public void lend(int group, Tensor[] views) {
        List<Parameter> members = members(group);
        for (int i = 0; i < members.size(); i++) {
            if (!members.get(i).isFrozen()) {
                sharing.lendGradient(members.get(i), views[i]);
            }
        }
    }
}
