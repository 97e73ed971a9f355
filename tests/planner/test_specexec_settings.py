"""SpecExec settings to try, from curves whose flat part is known."""

from tests.cli.invented import invented
from treeopt.planner import step_model
from treeopt.planner.dynamic import specexec_settings


class TestSettings:
    @staticmethod
    def settings(verify, draft=lambda *_: 1e-3):
        model = step_model(invented(verify=verify, draft=draft))
        return specexec_settings(model)

    def test_budgets_end_where_verification_bends(self):
        found = self.settings(lambda n, *_: 1e-2 * max(1, n / 8))
        assert {setting.budget for setting in found} == {2, 4, 8}

    def test_budgets_reach_what_was_measured_where_it_is_flat(self):
        found = self.settings(lambda *_: 1e-2)
        assert {setting.budget for setting in found} == {2, 4, 8, 16, 32}
        assert len(set(found)) == len(found)

    def test_where_nothing_is_flat_one_small_budget_is_left(self):
        assert {setting.budget for setting in self.settings(lambda n, *_: 1e-2 * n)} == {2}

    def test_one_slow_size_does_not_end_the_budgets(self):
        found = self.settings(lambda n, *_: 1e-2 if n == 1 else 2e-2)
        assert max(setting.budget for setting in found) == 32

    def test_a_draft_pass_is_as_wide_as_is_flat(self):
        found = self.settings(lambda *_: 1e-2, lambda n, *_: 1e-3 * max(1, n / 4))
        assert {setting.batch for setting in found if setting.budget > 4} == {4}
