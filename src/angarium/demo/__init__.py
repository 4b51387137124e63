"""The demo runs a support chat through every module in real processes and kills four of them."""
