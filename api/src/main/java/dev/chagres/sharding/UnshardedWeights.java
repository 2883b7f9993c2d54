package dev.chagres.sharding;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterAccess;
import java.util.List;

/**
 * Weights of groups in their own types, a vector a piece.
 *
 * <p>Threading: the device's thread.
 */
record UnshardedWeights(ParameterAccess sharing) implements FlatBufferContent {
    @Override
    public List<Vector> vectors(int group) {
        return sharing.groups().get(group).pieces().stream()
                .map(piece -> new Vector(piece.dtype(), piece.count()))
                .toList();
    }

    @Override
    public Tensor[] views(int group, Tensor[] vectors, Scope scope) {
        return views(
                sharing.groups().get(group).pieces(),
                sharing.groups().get(group).members(),
                vectors,
                scope);
    }

    /** Returns a view for each member of what a vector for each piece has of it; the first vector where none has. */
    static Tensor[] views(List<FlatParameter> pieces, List<Parameter> members, Tensor[] vectors, Scope scope) {
        Tensor[] views = new Tensor[members.size()];
        for (int i = 0; i < views.length; i++) {
            Parameter member = members.get(i);
            views[i] = vectors[0]; // A frozen member has no gradient: nobody is lent this.
            for (int piece = 0; piece < pieces.size(); piece++) {
                if (pieces.get(piece).holds(member)) {
                    views[i] = scope.view(vectors[piece], pieces.get(piece).offset(member), member.shape());
                }
            }
        }
        return views;
    }

    @Override
    public void lend(int group, Tensor[] views) {
        List<Parameter> members = sharing.groups().get(group).members();
        for (int i = 0; i < views.length; i++) {
            sharing.lendWeight(members.get(i), views[i]);
        }
    }
}
