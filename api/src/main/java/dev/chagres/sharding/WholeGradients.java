package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterSharing;
import java.util.List;

/**
 * Gradients of groups, FP32, a vector a trained piece.
 *
 * <p>Threading: the device's thread.
 */
final class WholeGradients implements GroupContent {
    private final ParameterSharing sharing;

    WholeGradients(ParameterSharing sharing) {
        this.sharing = sharing;
    }

    /** Returns the pieces of a group that have gradients. */
    List<GroupPiece> pieces(int group) {
        return sharing.groups().get(group).pieces().stream()
                .filter(GroupPiece::isTrained)
                .toList();
    }

    @Override
    public List<Vector> vectors(int group) {
        return pieces(group).stream()
                .map(piece -> new Vector(DType.FLOAT32, piece.count()))
                .toList();
    }

    @Override
    public Tensor[] views(int group, Tensor[] vectors, Scope scope) {
        List<Parameter> members = sharing.groups().get(group).members();
        return WholeWeights.views(pieces(group), members, vectors, scope);
    }

    @Override
    public void lend(int group, Tensor[] views) {
        List<Parameter> members = sharing.groups().get(group).members();
        for (int i = 0; i < members.size(); i++) {
            if (!members.get(i).isFrozen()) {
                sharing.lendGradient(members.get(i), views[i]);
            }
        }
    }
}
