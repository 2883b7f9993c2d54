package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterAccess;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.recipe.Quantizers;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Gathered weights of groups, those of products in eight bits: each piece with such weights has a vector of bytes as long as the piece, and
 * a second one, in its own type, of the elements between and behind those weights.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedContent implements FlatBufferContent {
    /** Elements of a piece that keep their type, and their place in the second vector. */
    record Stretch(long begin, long end, long offset) {}

    /** What one rank broadcasts of a piece: elements of it, and their place in the second vector. */
    record Broadcast(int piece, int root, long begin, long offset, long count) {}

    private final ParameterAccess sharing;
    /** The sites of weights in eight bits. */
    private final Map<Parameter, QuantizerSite> products;
    /** By index of the site: the number of the weight in its group. */
    private final int[] members;

    /** The type of weights in eight bits. */
    final DType dtype;

    private final int ranks;
    /** By group and piece. */
    private final List<List<List<Stretch>>> kept = new ArrayList<>();

    private final List<List<Broadcast>> broadcasts = new ArrayList<>();
    /** By group and piece: the number of its first vector. */
    private final List<int[]> vectors = new ArrayList<>();

    private QuantizedContent(
            ParameterAccess sharing, Map<Parameter, QuantizerSite> products, int places, DType dtype, int ranks) {
        this.sharing = sharing;
        this.products = products;
        this.dtype = dtype;
        this.ranks = ranks;
        members = new int[places];
        products.forEach((weight, site) ->
                members[site.index()] = members(weight.group()).indexOf(weight));
        for (int group = 0; group < sharing.groups().size(); group++) {
            List<List<Stretch>> ofGroup = new ArrayList<>();
            List<Broadcast> moved = new ArrayList<>();
            for (FlatParameter piece : pieces(group)) {
                List<Stretch> stretches = products(group, piece).isEmpty() ? List.of() : kept(group, piece);
                addBroadcasts(ofGroup.size(), piece, stretches, moved);
                ofGroup.add(stretches);
            }
            kept.add(ofGroup);
            broadcasts.add(moved);
            vectors.add(vectorNumbers(ofGroup));
        }
    }

    /**
     * Covers each weight that the layer which declares it multiplies in eight bits; other layers that share it, such as a tied head, read
     * it in its own type. Weights scaled by BLOCK_1D are gathered in their own type: their transpose has other scales, and other bytes.
     */
    static QuantizedContent of(Quantizers quantizers, Communicator ranks) {
        Parameters parameters = quantizers.parameters();
        Map<Parameter, QuantizerSite> products = new HashMap<>();
        for (QuantizerSite site : parameters.quantizers()) {
            if (site.role() == Role.WEIGHT
                    && quantizers.covers(site)
                    && quantizers.at(site).scaling() != Scaling.BLOCK_1D
                    && site.fits()
                    && site.name().equals(site.weight().name())
                    && site.weight().hasMemory()) {
                products.put(site.weight(), site);
            }
        }
        return new QuantizedContent(
                parameters.access(),
                products,
                parameters.quantizers().size(),
                quantizers.recipe().format().forward(),
                ranks.ranks());
    }

    private static int[] vectorNumbers(List<List<Stretch>> ofGroup) {
        int[] numbers = new int[ofGroup.size()];
        for (int i = 1; i < numbers.length; i++) {
            numbers[i] = numbers[i - 1] + (ofGroup.get(i - 1).isEmpty() ? 1 : 2);
        }
        return numbers;
    }

    /** Returns the place of a weight in eight bits. */
    QuantizerSite site(Parameter product) {
        return Checks.given("site", products.get(product));
    }

    /** Returns whether products read {@code parameter} in eight bits. */
    boolean isProduct(Parameter parameter) {
        return products.containsKey(parameter);
    }

    /** Returns the number of a weight among the members of its group. */
    int member(QuantizerSite site) {
        return members[site.index()];
    }

    int memberCount(int group) {
        return members(group).size();
    }

    List<FlatParameter> pieces(int group) {
        return sharing.groups().get(group).pieces();
    }

    private List<Parameter> members(int group) {
        return sharing.groups().get(group).members();
    }

    /** Returns the members of a piece whose products are computed in eight bits, in the order of memory. */
    List<Parameter> products(int group, FlatParameter piece) {
        return members(group).stream()
                .filter(member -> isProduct(member) && piece.holds(member))
                .sorted(Comparator.comparingLong(piece::offset))
                .toList();
    }

    /** Returns whether a group has weights in eight bits. */
    boolean hasProducts(int group) {
        List<Parameter> ofGroup = members(group);
        for (int i = 0; i < ofGroup.size(); i++) {
            if (isProduct(ofGroup.get(i))) {
                return true;
            }
        }
        return false;
    }

    private List<Stretch> kept(int group, FlatParameter piece) {
        List<Stretch> stretches = new ArrayList<>();
        long end = 0;
        long offset = 0;
        for (Parameter product : products(group, piece)) {
            long begin = piece.offset(product);
            if (begin > end) {
                stretches.add(new Stretch(end, begin, offset));
                offset += begin - end;
            }
            end = begin + product.shape().count();
        }
        if (piece.count() > end) {
            stretches.add(new Stretch(end, piece.count(), offset));
        }
        return stretches;
    }

    private void addBroadcasts(int number, FlatParameter piece, List<Stretch> stretches, List<Broadcast> moved) {
        for (Stretch stretch : stretches) {
            for (int rank = 0; rank < ranks; rank++) {
                Part part = new Part(rank, ranks);
                long first = Math.max(stretch.begin, part.begin(piece.count()));
                long end = Math.min(stretch.end, part.begin(piece.count()) + part.of(piece.count()));
                if (first < end) {
                    long offset = stretch.offset + first - stretch.begin;
                    moved.add(new Broadcast(number, rank, first, offset, end - first));
                }
            }
        }
    }

    /** Returns the broadcasts of a group, in the same order on each rank. */
    List<Broadcast> broadcasts(int group) {
        return broadcasts.get(group);
    }

    @Override
    public List<Vector> vectors(int group) {
        List<Vector> all = new ArrayList<>();
        for (int i = 0; i < pieces(group).size(); i++) {
            FlatParameter piece = pieces(group).get(i);
            boolean cast = !products(group, piece).isEmpty();
            all.add(new Vector(cast ? dtype : piece.dtype(), piece.count()));
            long count = kept.get(group).get(i).stream()
                    .mapToLong(stretch -> stretch.end - stretch.begin)
                    .sum();
            if (count > 0) {
                all.add(new Vector(piece.dtype(), count));
            }
        }
        return all;
    }

    @Override
    public boolean holds(int group) {
        return hasProducts(group);
    }

    /** Returns the index of the vector of a whole piece, or of its bytes; the second vector is the next one. */
    int vector(int group, int piece) {
        return vectors.get(group)[piece];
    }

    /** Returns a view for each member, then one for the target of each broadcast. */
    @Override
    public Tensor[] views(int group, Tensor[] memory, Scope scope) {
        List<Broadcast> moved = broadcasts(group);
        int count = memberCount(group);
        Tensor[] views = new Tensor[count + moved.size()];
        for (int i = 0; i < count; i++) {
            views[i] = view(group, members(group).get(i), memory, scope);
        }
        for (int i = 0; i < moved.size(); i++) {
            Broadcast one = moved.get(i);
            views[count + i] = scope.view(memory[vector(group, one.piece) + 1], one.offset, one.count);
        }
        return views;
    }

    private Tensor view(int group, Parameter member, Tensor[] memory, Scope scope) {
        for (int i = 0; i < pieces(group).size(); i++) {
            FlatParameter piece = pieces(group).get(i);
            if (piece.holds(member)) {
                int vector = vector(group, i);
                long offset = piece.offset(member);
                for (Stretch stretch : kept.get(group).get(i)) {
                    if (offset >= stretch.begin && offset < stretch.end) {
                        return scope.view(memory[vector + 1], stretch.offset + offset - stretch.begin, member.shape());
                    }
                }
                return scope.view(memory[vector], offset, member.shape());
            }
        }
        throw new IllegalStateException("group: expected one that has " + member + ", got "
                + sharing.groups().get(group).name());
    }

    /** Sets the weights that are not in eight bits. */
    @Override
    public void lend(int group, Tensor[] views) {
        List<Parameter> ofGroup = members(group);
        for (int i = 0; i < ofGroup.size(); i++) {
            if (!isProduct(ofGroup.get(i))) {
                sharing.lendWeight(ofGroup.get(i), views[i]);
            }
        }
    }
}
